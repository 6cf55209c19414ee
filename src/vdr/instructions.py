"""The instruction level that results are computed at: one declared level, so that bytes are equal on every x86-64 machine.

Matrix products and vector loops of another width round otherwise. So torch, its libraries, NumPy and this package's kernels are held to
`DECLARED` by switches that have to be set before those libraries load. `apply` sets them when `vdr` is imported (`vdr/__init__.py`), and
children inherit them. `VDR_INSTRUCTIONS=native` lets a process use all that its machine has; its artefacts then have other keys.
docs/reproducibility.md says which switches were shown to be needed, and where equality was seen.
"""

from __future__ import annotations

import functools
import os
import platform
import sys

from vdr.errors import BadInput, UnfitMachine

__all__ = ["DECLARED", "LEVELS", "NATIVE", "VARIABLE", "apply", "check", "in_force", "require", "runnable", "switches"]

DECLARED = "x86-64-v3"
NATIVE = "native"
VARIABLE = "VDR_INSTRUCTIONS"
#: What each level adds, as the names in /proc/cpuinfo (x86-64 psABI).
LEVELS = {
    "x86-64-v2": frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
    "x86-64-v3": frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}),
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
#: Hold torch's own kernels, MKL, oneDNN and NumPy to the declared level. They are the package's, not the user's: a value that says
#: otherwise would give other bytes under the same key, so it is replaced.
SWITCHES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
#: Taken away at the declared level. With it MKL's batched products round otherwise, also at the same width: arm A alone got other weights.
UNSET = ("MKL_CBWR",)


def in_force() -> str:
    """The level of this process: `DECLARED` unless the environment asks for another of `LEVELS`, or for `native`.

    Raises `BadInput` for a value that is no level.
    """
    level = os.environ.get(VARIABLE) or DECLARED
    if level != NATIVE and level not in LEVELS:
        raise BadInput(f"{level!r} is no instruction level", where=VARIABLE, todo=f"known: {', '.join([*LEVELS, NATIVE])}")
    return level


@functools.cache
def _flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        line = ""
    return frozenset(line.partition(":")[2].split())


def runnable() -> tuple[str, ...]:
    """The levels that this machine can run, lowest first; none on a machine that is not x86-64."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    levels: list[str] = []
    for name, needed in LEVELS.items():
        if needed - _flags():
            break
        levels.append(name)
    return tuple(levels)


def switches() -> dict[str, str]:
    """The switches that hold this machine to the declared level."""
    # NumPy warns of a feature that the processor lacks.
    return {name: value for name, value in SWITCHES.items() if not name.startswith("NPY_") or "x86-64-v4" in runnable()}


def apply() -> None:
    """Set the switches of the level in force, or take them away for `native`. Does nothing for a library that is loaded already."""
    if (os.environ.get(VARIABLE) or DECLARED) == DECLARED:  # a value that is no level is told by `in_force`, where it is asked for
        os.environ.update(switches())
        for name in UNSET:
            os.environ.pop(name, None)
        return
    for name, value in SWITCHES.items():
        if os.environ.get(name) == value:
            del os.environ[name]


def check(level: str) -> None:
    """Is `level` the one in force, can this machine run it, and do the loaded libraries keep to it?

    Raises `UnfitMachine` for a processor below the level, `BadInput` for another level and for a library that was loaded too early.
    """
    if level == NATIVE:
        return _same(level)
    if level not in runnable():
        lacking = ", ".join(sorted(LEVELS[level] - _flags())[:4]) if runnable() else "it is not x86-64"
        raise UnfitMachine(
            f"results are computed at {level}, which this processor cannot run ({lacking})",
            where="hardware.instructions",
            todo="use another machine, or --set hardware.instructions=native for results of this machine's own",
        )
    _same(level)
    early = [name for name, wider in (("torch", _torch_is_wider), ("numpy", _numpy_is_wider)) if name in sys.modules and wider()]
    if early:
        raise BadInput(
            f"{' and '.join(early)} had been loaded before vdr could hold it to {level}",
            where="hardware.instructions",
            todo="import vdr first",
        )


def _same(level: str) -> None:
    if level != in_force():
        raise BadInput(
            f"the profile computes at {level}, this process at {in_force()}",
            where="hardware.instructions",
            todo=f"start it with {VARIABLE}={level}",
        )


def _torch_is_wider() -> bool:
    import torch

    return "512" in torch.backends.cpu.get_cpu_capability()


def _numpy_is_wider() -> bool:
    from numpy._core._multiarray_umath import __cpu_features__

    return bool(__cpu_features__.get("X86_V4") or __cpu_features__.get("AVX512_SKX"))


def require(level: str) -> None:
    """For a command: go on at `level`, starting the same command anew where the process has another one in force.

    In a process that is no `vdr` command of its own (a notebook, a test) raises `BadInput` instead.
    """
    if level == in_force():
        return
    if os.path.basename(sys.argv[0]) not in ("vdr", "cli.py"):
        return _same(level)
    environment = {**os.environ, VARIABLE: level}
    for name, value in SWITCHES.items():
        if environment.get(name) == value:
            del environment[name]
    os.execve(sys.executable, [sys.executable, "-m", "vdr.cli", *sys.argv[1:]], environment)
