#!/usr/bin/env python
"""Which of the switches that hold a machine to the declared instruction level are needed on this processor?

For every switch, and for every set named on the command line, `vdr verify --recorded` is run without it, in a store of its own, and its
verdict printed: the recorded bytes, or the first artefact that differs. Minutes each. `kernels` stands for compiling this package's own
kernels for the processor at hand instead of for the level. docs/reproducibility.md has what was found.

    python scripts/needed_switches.py                                       # each switch alone
    python scripts/needed_switches.py MKL_ENABLE_INSTRUCTIONS,kernels       # both at once
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vdr import instructions
from vdr.provenance import hardware

#: Read by every Python process of the run before anything else: takes switches away, and the check that would refuse to go on without them.
WITHOUT = """
import os
from vdr import instructions
for name in {left_out!r}:
    if name == "kernels":
        from vdr.kernels import native
        native._tunes = lambda level: [["-march=native"]]
        continue
    instructions.SWITCHES.pop(name)
    os.environ.pop(name, None)
instructions._torch_is_wider = instructions._numpy_is_wider = lambda: False
"""


def tried(left_out: list[str], profile: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "sitecustomize.py").write_text(WITHOUT.format(left_out=left_out))
        path = os.pathsep.join([scratch, str(Path(instructions.__file__).parents[1])])
        environment = {name: value for name, value in os.environ.items() if name not in instructions.SWITCHES}
        environment |= {"PYTHONPATH": path, "VDR_OUTPUTS": f"{scratch}/outputs", "VDR_CACHE": f"{scratch}/cache"}
        command = [sys.executable, "-m", "vdr.cli", "verify", "--recorded", "--profile", profile]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "recorded bytes" in line]
    if done.returncode not in (0, 3) or len(lines) != 1:
        raise SystemExit(f"vdr verify --recorded ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return lines[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="NAME[,NAME…]", help="switches to leave out together; default: each alone")
    parser.add_argument("--profile", default="mini")
    chosen = parser.parse_args()
    known = [*instructions.SWITCHES, "kernels"]
    sets = [item.split(",") for item in chosen.sets] or [[name] for name in known]
    if unknown := {name for names in sets for name in names} - set(known):
        parser.error(f"no such switch: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    print(f"{hardware()['processor']}, levels {', '.join(instructions.runnable())}")
    for names in sets:
        start = time.monotonic()
        print(f"without {' and '.join(names)}: {tried(names, chosen.profile)} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
