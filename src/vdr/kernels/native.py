"""The small C library behind the kernels: compiled once per machine with the system's C compiler, loaded with ctypes.

The sources (`csrc/*.c`) are plain C with GCC/Clang vector types; they are compiled for the processor at hand into
``$VDR_CACHE`` (default ``~/.cache/vdr``) under a name that holds the hash of sources, flags, compiler and processor.
Without a compiler, or with ``VDR_NATIVE=0``, :func:`library` returns None and every kernel takes its NumPy/torch path:
the same results within rounding, slower. Calls release the interpreter lock, so pages are spread over threads from Python.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

SOURCES = sorted((Path(__file__).parent / "csrc").glob("*.c"))
HEADERS = sorted((Path(__file__).parent / "csrc").glob("*.h"))
#: No -ffast-math: NaN, infinity and the order of additions are part of the contract.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-w")


def _compiler() -> list[str] | None:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "") + platform.machine()
    except OSError:
        return platform.processor() + platform.machine()


def _build() -> Path:
    compiler = _compiler()
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc or clang)")
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    digest = hashlib.sha256("\0".join([*FLAGS, *compiler, version, _processor()]).encode())
    for source in [*SOURCES, *HEADERS]:
        digest.update(source.read_bytes())
    home = Path(os.environ.get("VDR_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vdr")
    path = home / f"kernels-{digest.hexdigest()[:16]}.so"
    if path.exists():
        return path
    try:
        home.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(dir=home, prefix=".build-")
    except OSError:  # a read-only home: compile for this process alone
        scratch = tempfile.mkdtemp(prefix="vdr-kernels-")
        path = Path(scratch) / path.name
    out = Path(scratch) / "out.so"
    errors = []
    for tune in (["-march=native"], ["-mcpu=native"], []):
        command = [*compiler, *FLAGS, *tune, *map(str, SOURCES), "-o", str(out), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            os.replace(out, path)  # another process may have built the same file: either is right
            if Path(scratch) != path.parent:
                shutil.rmtree(scratch, ignore_errors=True)
            return path
        errors.append(done.stderr.strip()[-300:])
    shutil.rmtree(scratch, ignore_errors=True)
    raise RuntimeError("the C compiler refused the kernels: " + errors[-1])


@functools.lru_cache(maxsize=1)
def _load() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(_build()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.warning("native kernels are off, slower NumPy/torch paths are used: %s", error)
        return None


def library() -> ctypes.CDLL | None:
    """The compiled library, or None (no compiler, or ``VDR_NATIVE=0``)."""
    return None if os.environ.get("VDR_NATIVE", "1") == "0" else _load()


def pointer(array: Any) -> ctypes.c_void_p:
    """Address of a contiguous NumPy array or CPU tensor (None → NULL)."""
    if array is None:
        return ctypes.c_void_p(None)
    return ctypes.c_void_p(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


def threads() -> int:
    """Threads that kernels use: ``OMP_NUM_THREADS`` if set, otherwise the processors this process may run on."""
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, int(wish)) if wish.isdigit() else max(1, len(os.sched_getaffinity(0)))


@functools.lru_cache(maxsize=4)
def _pool(workers: int, pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="vdr-kernel")


def run(work: Callable[[Any], Any], parts: Iterable[Any], *, workers: int | None = None) -> list[Any]:
    """``[work(part) for part in parts]`` over threads, in order; one part or one worker runs in the caller's thread."""
    parts = list(parts)
    workers = min(threads() if workers is None else workers, len(parts))
    if workers <= 1:
        return [work(part) for part in parts]
    return list(_pool(workers, os.getpid()).map(work, parts))  # keyed by pid: threads do not survive a fork
