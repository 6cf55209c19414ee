"""The small C library behind the kernels: compiled once per machine with the system's C compiler, loaded with ctypes.

The sources (`csrc/*.c`) are plain C with GCC/Clang vector types. They are compiled for one instruction level, the one in force
(`vdr.instructions`), into ``$VDR_CACHE`` (default ``~/.cache/vdr``) under a name that holds the hash of sources, flags and compiler. So
results depend on the level and not on the machine; ``native`` compiles for the processor at hand.

A library is used only after it has answered a small probe as the plain twins do (`vdr.kernels.probe`). Without a compiler, with
``VDR_NATIVE=0``, or after a wrong answer, :func:`library` returns None and every kernel takes its NumPy/torch path: the same results
within rounding, slower. Each such way around is counted (:func:`fallbacks`) and said once. Calls release the interpreter lock, so pages are
spread over threads from Python.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vdr import instructions

log = logging.getLogger(__name__)

SOURCES = sorted((Path(__file__).parent / "csrc").glob("*.c"))
HEADERS = sorted((Path(__file__).parent / "csrc").glob("*.h"))
#: Kind of pages in `csrc/maxsim.c`: bf16 against bf16 by the processor's own products, where the library has them (`vdr_pairs`).
PAIRS = 3
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


def build(level: str, flags: Sequence[str]) -> Path:
    """The library of an instruction level, compiled with `flags` if it is not there. Raises RuntimeError when it cannot be compiled."""
    compiler = _compiler()
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc or clang)")
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    tunes = _tunes(level)
    processor = _processor() if level == instructions.NATIVE else platform.machine()
    digest = hashlib.sha256("\0".join([*flags, level, *compiler, version, processor, str(tunes)]).encode())
    for source in [*SOURCES, *HEADERS]:
        digest.update(source.read_bytes())
    home = Path(os.environ.get("VDR_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vdr")
    path = home / f"kernels-{level}-{digest.hexdigest()[:16]}.so"
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
    for tune in tunes:
        command = [*compiler, *flags, *tune, *map(str, SOURCES), "-o", str(out), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            os.replace(out, path)  # another process may have built the same file: either is right
            if Path(scratch) != path.parent:
                shutil.rmtree(scratch, ignore_errors=True)
            return path
        errors.append(done.stderr.strip()[-300:])
    shutil.rmtree(scratch, ignore_errors=True)
    raise RuntimeError("the C compiler refused the kernels: " + errors[-1])


def _tunes(level: str) -> list[list[str]]:
    """Compiler options for a level, the first that the compiler takes; a machine that is not x86-64 has its own level alone."""
    if level == instructions.NATIVE or not instructions.runnable():
        return [["-march=native", *(["-DVDR_SPLIT"] if _splits_registers() else [])], ["-mcpu=native"], []]
    return [[f"-march={level}"]]


def _splits_registers() -> bool:
    """Does the processor work through a register of 512 bits in two turns of 256, as AMD's Zen 4 (family 25) does?"""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            first = dict(part.split(":", 1) for part in itertools.takewhile(str.strip, lines) if ":" in part)
    except OSError:
        return False
    facts = {name.strip(): value.strip() for name, value in first.items()}
    return facts.get("vendor_id") == "AuthenticAMD" and facts.get("cpu family") == "25"


@functools.cache
def load(level: str) -> ctypes.CDLL | None:
    """The library of an instruction level if it can be compiled and answers its probe rightly, else None (said once)."""
    from vdr.kernels.probe import wrong_answer

    try:
        found = ctypes.CDLL(str(build(level, FLAGS)))
        wrong = wrong_answer(found)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        wrong = str(error)
    if wrong is None:
        return found
    _off[level] = wrong
    log.warning("native kernels are off, slower NumPy/torch paths are used: %s", wrong)
    return None


#: Why the library of a level is not used.
_off: dict[str, str] = {}
_fallbacks: collections.Counter[str] = collections.Counter()


def fell_back(kernel: str, why: str) -> None:
    """Note that a kernel's plain twin had to answer."""
    _fallbacks[f"{kernel}: {why}"] += 1


def fallbacks() -> dict[str, int]:
    """How often a plain twin answered in this process where the native kernel should have, by kernel and reason."""
    return dict(sorted(_fallbacks.items())) | {f"library: {why}": 1 for why in _off.values()}


def library() -> ctypes.CDLL | None:
    """The compiled library of the level in force, or None (no compiler, a wrong answer, or ``VDR_NATIVE=0``)."""
    return None if os.environ.get("VDR_NATIVE", "1") == "0" else load(instructions.in_force())


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
