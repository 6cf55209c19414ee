"""Several training runs at once, each in a process of its own, with their progress added up.

Two processes of one thread each are faster than one of two at the miniature's sizes, and a process of its own keeps a run's random
state, threads and memory to itself. Children write into the store; the parent only starts, watches and ends them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vdr.children import Child, fork_server, start_command, start_fork, wait_all
from vdr.errors import VdrError
from vdr.progress import BAR_SECONDS, PLAIN_SECONDS, PROGRESS_FILE, clock, note, read_progress_file

__all__ = ["ChildFailed", "Job", "run_jobs", "thread_environment"]

OWN = "vdr"
POLL_SECONDS = 0.1
END_SECONDS = 10.0


class ChildFailed(VdrError):
    """A child process ended with an error of its own; the line names the run and repeats the child's last line."""


@dataclass
class Job:
    """One child: a name for people, its command, a log file, and the cost that is expected of it (any unit, only compared).

    A command that starts with `vdr` is this package's own and runs in a fork of a server that has imported it.
    """

    name: str
    command: Sequence[str]
    log: Path
    cost: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Running:
    job: Job
    process: Child
    progress: Path
    started: float
    best: float = 0.0

    def share(self) -> float:
        """How much of the job is done, 0 to 1. A job's first task (training) is nearly all of it; later ones never lower it."""
        state = read_progress_file(self.progress) or {}
        done, total = state.get("done"), state.get("total")
        if isinstance(done, int) and isinstance(total, int) and total > 0:
            self.best = max(self.best, 0.95 * min(done / total, 1.0))
        return self.best

    def words(self) -> str:
        state = read_progress_file(self.progress)
        if state is None:
            return self.job.name
        total = state.get("total")
        where = f"{state.get('done')}/{total}" if total else f"{state.get('done')}"
        suffix = f" {state['suffix']}" if state.get("suffix") else ""
        return f"{self.job.name}: {state.get('label')} {where}{suffix}"


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that hold every library of a child to so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**{name: str(threads) for name in names}, "TOKENIZERS_PARALLELISM": "false"}


def run_jobs(jobs: Sequence[Job], processes: int, threads: int, *, title: str = "runs") -> dict[str, float]:
    """Run the jobs, at most `processes` at once, the costliest first (so that no long one is left alone at the end).

    Returns seconds by job name. The first child that fails ends the others (they resume next time) and raises `ChildFailed`;
    a KeyboardInterrupt ends them all and goes on.
    """
    waiting = sorted(jobs, key=lambda job: -job.cost)
    running: list[_Running] = []
    took: dict[str, float] = {}
    report = _Report(title, jobs)
    with tempfile.TemporaryDirectory(prefix="vdr-progress-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    running.append(_start(waiting.pop(0), Path(folder), threads))
                time.sleep(POLL_SECONDS)
                for item in list(running):
                    code = item.process.poll()
                    if code is None:
                        continue
                    running.remove(item)
                    if code != 0:
                        raise _failure(item.job, code)
                    took[item.job.name] = time.monotonic() - item.started
                    report.finished(item.job, took[item.job.name])
                report.show(running, waiting)
        finally:
            wait_all([item.process for item in running], END_SECONDS)
            report.close()
    return took


def _start(job: Job, folder: Path, threads: int) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    progress = folder / (job.name.replace("/", "_").replace(" ", "_") + ".json")
    environment = {**thread_environment(threads), **job.environment, PROGRESS_FILE: str(progress)}
    server = fork_server(thread_environment(threads)) if job.command[0] == OWN else None
    if server is not None:
        process = start_fork(server, job.command[1:], job.log, environment)
    else:
        fresh = [sys.executable, "-m", "vdr.cli", *job.command[1:]] if job.command[0] == OWN else job.command
        process = start_command(fresh, job.log, environment)
    return _Running(job, process, progress, time.monotonic())


def _failure(job: Job, code: int) -> ChildFailed:
    lines = [line.strip() for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("vdr: ") if lines else "it said nothing"
    how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"failed with exit status {code}"
    error = ChildFailed(f"{job.name} {how}: {last}", todo=f"its whole log: {job.log}")
    if code > 0:
        error.exit_code = code
    return error


class _Report:
    """The one line (terminal) or the occasional lines (log) about all children."""

    def __init__(self, title: str, jobs: Sequence[Job]) -> None:
        self.title = title
        self.total = len(jobs)
        self.done = 0
        self.cost_done = 0.0
        self.cost_total = sum(job.cost for job in jobs)
        self.started = time.monotonic()
        self.shown = self.started
        self.tty = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def finished(self, job: Job, seconds: float) -> None:
        self.done += 1
        self.cost_done += job.cost
        self._clear()
        note(f"   {job.name} done in {clock(seconds)} ({self.done}/{self.total})")

    def show(self, running: Sequence[_Running], waiting: Sequence[Job]) -> None:
        now = time.monotonic()
        if now - self.shown < (BAR_SECONDS if self.tty else PLAIN_SECONDS):
            return
        self.shown = now
        cost = self.cost_done + sum(item.job.cost * item.share() for item in running)
        elapsed = now - self.started
        left = elapsed * (self.cost_total - cost) / cost if cost > 0 else None
        parts = [f"{self.title} {self.done}/{self.total}", *(item.words() for item in running)]
        parts.append(f"{clock(elapsed)} so far, ETA {clock(left)}")
        line = "  |  ".join(parts)
        if self.tty:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            sys.stderr.write("\r\x1b[2K" + line[: max(width - 1, 20)])
            sys.stderr.flush()
        else:
            note(line)

    def _clear(self) -> None:
        if self.tty:
            sys.stderr.write("\r\x1b[2K")

    def close(self) -> None:
        self._clear()
