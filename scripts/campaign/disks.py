"""A full disk and a read-only disk at every stage: one line and status 6, and the same command goes on when there is room.

The disk is a file system in memory, mounted in a name space of this process's own (`unshare`), so nothing of the machine is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench import MADE_BY, STUDY, Bench, Run, Tried, one_line, size_of

PART = "disks"
INSIDE = "VDR_CAMPAIGN_DISKS"
#: Every stage's results, and what is written last.
ENDS = {"tables": STUDY, "record": STUDY[:1], "ev": STUDY[2:], "notebooks": STUDY[:1]}


def run(bench: Bench) -> None:
    kinds = [*bench.kinds(), *(name for name in ENDS if (bench.undisturbed / "smoke" / name).is_dir())]
    if all(f"{way}, {kind}" in bench.tried(PART) for kind in kinds for way in ("full", "read-only")):
        return
    if INSIDE in os.environ:
        for kind in kinds:
            _kind(bench, kind)
        return
    inside = ["unshare", "-rm", sys.executable, *sys.argv]
    code = subprocess.run(inside, env={**os.environ, INSIDE: "1"}, check=False).returncode
    if code:
        raise SystemExit(
            f"no name space of its own for the disks ({' '.join(inside[:2])} ended with {code}): this part was not tried"
        )


def _kind(bench: Bench, kind: str) -> None:
    if f"full, {kind}" in bench.tried(PART):
        return
    disk = bench.work / "disk"
    disk.mkdir(exist_ok=True)
    size = 2 * size_of(bench.undisturbed) + (64 << 20)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        _on(bench, kind, disk)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _on(bench: Bench, kind: str, disk: Path) -> None:
    place = disk / "outputs"
    shutil.copytree(bench.undisturbed, place)
    gone = place / "smoke" / kind if kind in ENDS else place / "smoke" / "artefacts" / kind
    bytes_of_it = size_of(gone)
    shutil.rmtree(gone)
    commands = ENDS.get(kind) or MADE_BY.get(kind, STUDY[:1])

    started = time.monotonic()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    refused = _run(bench, commands[0], place)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    _note(bench, f"read-only, {kind}", refused, [], started)

    started = time.monotonic()
    # So little room that the stage cannot end, and so much that it begins: at random between nothing and half of what it writes.
    room = int(bench.random(PART, kind).uniform(0, 0.5) * bytes_of_it)
    filler = disk / "filler"
    free = shutil.disk_usage(disk).free
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, max(4096, free - room))
    refused = _run(bench, commands[0], place)
    filler.unlink()
    again = [_run(bench, words, place) for words in commands]
    wrong = [f"with room again status {run.wait()}: {run.last_line()[:120]}" for run in again if run.wait()]
    _note(bench, f"full, {kind}", refused, wrong or bench.differences(place)[:5], started, f"{room >> 10} kB left, ")


def _run(bench: Bench, words: tuple[str, ...], place: Path) -> Run:
    """A run whose own log is not on the disk that is full."""
    # The profile asks for more room beforehand than the disk is left with; here the stage itself is to meet the end of it.
    return Run(place, (*words, "--set", "hardware.disk_gb=0"), log=str(bench.work / "disk-run")).finish()


def _note(bench: Bench, what: str, refused: Run, wrong: list[str], started: float, before: str = "") -> None:
    if refused.wait() != 6:
        wrong = [f"status {refused.wait()}: {refused.last_line()[:160]}", *wrong]
    elif problem := one_line(refused):
        wrong = [problem, *wrong]
    after = ", then the undisturbed bytes" if what.startswith("full") else ""
    happened = f"{before}status 6, one line{after}"
    promised = f"status 6, one line{after}"
    bench.note(
        Tried(
            PART,
            what,
            what.split(", ")[1],
            promised,
            "; ".join(wrong) or happened,
            not wrong,
            time.monotonic() - started,
        )
    )
