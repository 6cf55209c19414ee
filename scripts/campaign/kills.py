"""Kills at random moments of every stage; every chain of kills must end in the undisturbed bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
from bench import LONGEST, STUDY, Bench, Run, Tried, kind_of

PART = "kills"
#: name → (signal, exit statuses that are as promised, the usual one first)
WAYS = {
    "SIGKILL": (signal.SIGKILL, (-9,)),
    "SIGKILL to all its processes": (signal.SIGKILL, (-9,)),
    "SIGTERM": (signal.SIGTERM, (-15, 143)),
    "Ctrl-C": (signal.SIGINT, (130, -2)),
}
#: Chance that a kill is meant for the next stage, and not for one further on: the larger, the more kills a chain has.
SOON = 0.65


def run(bench: Bench) -> None:
    stages = bench.stages()
    chain = 1 + len({tried.run for tried in bench.journal() if tried.part == "chains"})
    while sum(tried.part == PART for tried in bench.journal()) < bench.kills:
        _chain(bench, f"chain {chain}", stages)
        chain += 1


def _chain(bench: Bench, name: str, stages: list[tuple[int, str, float]]) -> None:
    place = bench.work / "killed"
    shutil.rmtree(place, ignore_errors=True)
    random = bench.random(PART, name)
    started, count, at = time.monotonic(), 0, 0
    for number, words in enumerate(STUDY):
        ahead = [(stage, seconds) for command, stage, seconds in stages if command == number]
        while True:
            at = min(int(random.geometric(SOON)) - 1, len(ahead) - 1)
            seconds = ahead[at][1]
            wait = random.uniform(0, seconds + 0.5)
            way = list(WAYS)[random.integers(len(WAYS))]
            running = Run(place, words)
            if not _reached(running, {stage for stage, _ in ahead[at:]}, wait):
                break
            count += 1
            reached = running.stage()
            _kill(bench, running, way, kind_of(reached), name)
            names = [stage for stage, _ in ahead]
            # What began before the stage that was reached is finished; a target that is cached never begins again.
            ahead = ahead[names.index(reached) :] if reached in names else ahead
        if running.wait():
            happened = f"ended with {running.wait()}: {running.last_line()}"
            bench.note(Tried("chains", name, words[0], "status 0", happened, False, time.monotonic() - started, name))
            return
    wrong = bench.differences(place)
    wrong += _ratings(place)
    happened = f"{count} kills, then {'the undisturbed bytes' if not wrong else '; '.join(wrong[:5])}"
    promised = "the undisturbed bytes, every rating once"
    bench.note(Tried("chains", name, "all", promised, happened, not wrong, time.monotonic() - started, name))


def _reached(running: Run, wanted: set[str], wait: float) -> bool:
    """Wait until `wait` seconds of a wanted stage have passed; False when the command ended first.

    Any stage from the one that the kill is meant for on: one that is cached never begins.
    """
    deadline = None
    limit = time.monotonic() + LONGEST
    while running.process.poll() is None and time.monotonic() < limit:
        if deadline is None and running.stage() in wanted:
            deadline = time.monotonic() + wait
        if deadline is not None and time.monotonic() >= deadline:
            return True
        time.sleep(0.01)
    return False


def _kill(bench: Bench, running: Run, way: str, stage: str, chain: str) -> None:
    number, promised = WAYS[way]
    at = time.monotonic() - running.started
    # A terminal sends Ctrl-C to the whole group.
    send = os.killpg if way == "Ctrl-C" else os.kill
    for pid in running.processes() if way.endswith("processes") else [running.process.pid]:
        with contextlib.suppress(ProcessLookupError):
            send(pid, number)
    try:
        status: int | str = running.wait(60)
    except subprocess.TimeoutExpired:
        running.process.kill()
        status = "still running after 60 s"
    left = running.left_behind()
    wrong = [] if status in promised or status == 0 else [f"status {status}"]
    wrong += [f"{len(left)} processes left behind"] if left else []
    if "Traceback (most recent call last)" in running.said() and way == "Ctrl-C":
        wrong.append("a traceback")
    if way == "Ctrl-C" and status == promised[0] and "vdr: stopped" not in running.last_line():
        wrong.append(f"its last line is not that it was stopped: {running.last_line()[:120]}")
    what = f"{way}, {chain}, {at:.2f} s after the start"
    happened = ", ".join(wrong) or f"status {status}, nobody left behind"
    bench.note(Tried(PART, what, stage, f"status {promised[0]}, nobody left behind", happened, not wrong, at, chain))


def _ratings(place: Path) -> list[str]:
    wrong = []
    for file in (place / "smoke" / "artefacts" / "ratings").glob("*/ratings.parquet"):
        pairs = pd.read_parquet(file, columns=["row_id", "page_id"])
        if pairs.duplicated().any():
            wrong.append(f"{int(pairs.duplicated().sum())} ratings stand twice")
    return wrong
