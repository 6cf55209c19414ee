"""Commands that make the same thing at the same time: one makes it, the others are told who does."""

from __future__ import annotations

import shutil
import time

from bench import STUDY, Bench, Run, Tried, one_line

PART = "writers"
TRIALS = 3


def run(bench: Bench) -> None:
    for trial in range(TRIALS):
        what = "two at once" if trial == 0 else f"a second one every few seconds, trial {trial}"
        if what not in bench.tried(PART):
            _trial(bench, what, trial)


def _trial(bench: Bench, what: str, trial: int) -> None:
    place = bench.work / "two-writers" / "outputs"
    shutil.rmtree(place, ignore_errors=True)
    random = bench.random(PART, trial)
    started = time.monotonic()
    runs = [Run(place, STUDY[0], log="first")]
    while runs[0].process.poll() is None:
        runs.append(Run(place, STUDY[0], log=f"second-{len(runs)}").finish())
        if trial == 0:
            break
        time.sleep(random.uniform(1, 6))
    runs[0].wait()
    busy = [run for run in runs if run.wait() == 4]
    wrong = [f"status {run.wait()}: {run.last_line()[:120]}" for run in runs if run.wait() not in (0, 4)]
    wrong += [problem for run in busy if (problem := one_line(run))]
    # Whoever was told to wait repeats the command, as the line says.
    for words in STUDY:
        last = Run(place, words, log="afterwards").finish()
        if last.wait():
            wrong.append(f"afterwards status {last.wait()}: {last.last_line()[:120]}")
    wrong += bench.differences(place)[:5]
    happened = f"{len(runs)} commands, {len(busy)} told in one line who builds (status 4), then the undisturbed bytes"
    promised = "status 0 or 4, the undisturbed bytes"
    bench.note(Tried(PART, what, "all", promised, "; ".join(wrong) or happened, not wrong, time.monotonic() - started))
