"""A campaign against the package: kills, full and closed disks, two writers, flipped bits, bad input.

Everything is done through the public commands, on the profile `smoke`, in outputs of its own, and judged by what a user is promised: the
same bytes after any interruption, nothing half-written, nobody left behind, one line and a status for what cannot be done. About an hour.
What was tried is kept in a journal, so a second call goes on where the first ended; the report is written at the end of each part.

    make campaign                                         # all of it, report to docs/measured/campaign.md
    python scripts/campaign --only inputs --work /tmp/c   # one part
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import disks
import flips
import inputs
import kills
import report
import writers
from bench import ROOT, Bench

PARTS = {"kills": kills.run, "disks": disks.run, "writers": writers.run, "flips": flips.run, "inputs": inputs.run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable; default: every part)")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "outputs" / "campaign", help="where runs and the journal live"
    )
    parser.add_argument("--kills", type=int, default=200, help="how many kills at least")
    parser.add_argument("--seed", type=int, default=0, help="seed of moments, signals, files and bits")
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "measured" / "campaign.md")
    chosen = parser.parse_args()
    # A shell that starts this in the background has it ignore Ctrl-C, and every command would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = Bench(chosen.work.resolve(), chosen.seed, chosen.kills)
    if disks.INSIDE in os.environ:
        disks.run(bench)
        return
    for name in chosen.only or PARTS:
        PARTS[name](bench)
        report.write(bench, chosen.report)
    failed = [tried for tried in bench.journal() if not tried.ok]
    for tried in failed:
        print(f"NOT AS PROMISED  {tried.part}: {tried.what}: {tried.happened}", file=sys.stderr)
    print(f"{len(bench.journal())} tried, {len(failed)} not as promised; report: {chosen.report}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
