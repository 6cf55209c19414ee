"""Child processes: a fresh interpreter or a fork of a server that has imported everything, for one `vdr` command each; pools of fresh ones.

Importing torch and transformers takes seconds, more than a short run can spare fifteen times. A fork server imports them once and
computes nothing itself, so that a fork of it is as clean as a fresh process: no threads, no random state used.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "Child",
    "FreshProcesses",
    "die_with_parent",
    "environment_of",
    "fork_server",
    "interrupts_held",
    "start_command",
    "start_fork",
    "wait_all",
]

# What every training run imports; a module's import must not start threads or touch random state.
PRELOAD = ("vdr.children_preload",)
#: Longest folder that leaves room for multiprocessing's own names (`/pymp-12345678/listener-12345678`).
LONGEST_TEMPORARY = 70
SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


class Child(Protocol):
    """A running process: `poll` gives its exit status (negative: signal) or None."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class _Command:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, timeout: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class _Fork:
    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self.process = process

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float) -> None:
        self.process.join(timeout)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def environment_of(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for as long as the block lasts: what is started inside inherits them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def start_command(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Child:
    """Any command, in a session of its own, both outputs to the end of `log`."""
    whole = {**os.environ, **environment, "VDR_PARENT": str(os.getpid())}
    with log.open("ab") as out:
        return _Command(
            subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=whole, start_new_session=True
            )
        )


def fork_server(environment: Mapping[str, str]) -> ForkServerContext | None:
    """The server (started at the first call, with these variables), or None where the platform has none."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    with environment_of({**environment, "VDR_PARENT": str(os.getpid())}), short_temporary_names(), interrupts_held():
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def short_temporary_names() -> Iterator[None]:
    """Let the standard library put its sockets where their names stay under a socket's limit.

    A socket's path has at most 108 bytes, and batch systems give jobs a TMPDIR that leaves no room for one.
    """
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMPORARY:
        tempfile.tempdir = next((place for place in SHORT_PLACES if os.access(place, os.W_OK)), before)
    try:
        util.get_temp_dir()  # made here and kept: multiprocessing uses one folder for the whole life of a process
        yield
    finally:
        tempfile.tempdir = before


def start_fork(context: ForkServerContext, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Child:
    """A `vdr` command in a fork of the server, both outputs to the end of `log`."""
    from multiprocessing import forkserver

    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # the standard library has no other way to it
    process = context.Process(target=_run, args=(list(arguments), str(log), dict(environment), server))
    process.start()
    return _Fork(process)


def _run(arguments: list[str], log: str, environment: dict[str, str], server: int) -> None:
    """The child: it belongs to itself, writes to its log, and ends when the server (and so the parent) ends."""
    os.environ["VDR_PARENT"] = str(server)  # asked of the parent, for by now it may have gone, and the server with it
    die_with_parent()
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    # The server's own streams may be closed or buffered; the child's lines go to its log one by one.
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.update(environment)
    importlib.import_module("vdr.cli").main(arguments)


def wait_all(children: Sequence[Child], seconds: float) -> None:
    """End them all: politely first, by force after `seconds`."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + seconds
    for child in children:
        child.wait(max(deadline - time.monotonic(), 0.1))
        if child.poll() is None:
            child.kill()


def die_with_parent() -> None:
    """For a child's first lines: end when the parent ends, however it ends (Linux), so that no orphan holds a lock."""
    parent = os.environ.get("VDR_PARENT")
    if parent is None or not sys.platform.startswith("linux"):
        return
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before the line above
        raise SystemExit(1)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block is over; a process that is started inside never gets one."""
    resource_tracker.ensure_running()  # started inside, it would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class FreshProcesses(ProcessPoolExecutor):
    """A pool of fresh interpreters that end with this process, however it ends, and with the `with` block, however it is left.

    A terminal sends Ctrl-C to every process; here it is this one's alone, which then ends the others. `begin(*arguments)` is called in all.
    """

    def __init__(self, processes: int, begin: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        # The bond comes first: a child reads these in turn, and what `begin` imports may take long.
        super().__init__(processes, context, _begin_fresh, (_Bond(), begin, arguments))

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        with interrupts_held():  # processes are started when there is work for them
            return super().submit(call, *args, **named)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            for process in list((self._processes or {}).values()):
                process.terminate()
        self.shutdown(wait=True, cancel_futures=kind is not None)


class _Bond:
    """Reading it in another process binds that process to the one that wrote it."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return _bind, (os.getpid(),)


def _bind(parent: int) -> None:
    os.environ["VDR_PARENT"] = str(parent)
    die_with_parent()


def _begin_fresh(bond: object, begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    if begin is not None:
        begin(*arguments)
