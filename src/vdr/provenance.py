"""Where a result comes from: code, packages, hardware, memory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import vdr
from vdr import instructions

__all__ = ["code", "fallbacks", "hardware", "packages", "peak_memory_mb", "reset_peak_memory", "source_hash"]

# The packages whose version can change a result.
PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "pillow",
    "pytrec-eval-terrier",
    "pydantic",
)


@functools.lru_cache(maxsize=1)
def source_hash() -> str:
    """SHA-256 over the package's own source and data files (names and bytes; weights left out: artefacts name them)."""
    root = Path(vdr.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(item for suffix in ("*.py", "*.yaml") for item in root.rglob(suffix)):
        digest.update(path.relative_to(root).as_posix().encode("utf-8") + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def code() -> dict[str, Any]:
    """Package version, source hash, and the commit where the package lies in a git checkout."""
    facts: dict[str, Any] = {"version": vdr.__version__, "source_sha256": source_hash()}
    root = Path(vdr.__file__).resolve().parents[2]
    if (root / ".git").exists():
        try:
            commit = subprocess.run(
                ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return facts
        facts["commit"] = commit.stdout.strip()
    return facts


@functools.lru_cache(maxsize=1)
def packages() -> dict[str, str]:
    """Versions of Python and of the packages that can change a result."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.lru_cache(maxsize=1)
def hardware() -> dict[str, Any]:
    """Processor, cores this process may use, memory in GB, threads, and the CUDA device where torch has already found one."""
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": _processor(),
        "instructions": instructions.in_force(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    torch = sys.modules.get("torch")  # importing torch only to describe the machine would cost seconds
    if torch is not None:
        facts["threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def fallbacks() -> dict[str, int]:
    """How often the plain twin of a native kernel answered in its place in this process, by kernel and reason."""
    native = sys.modules.get("vdr.kernels.native")  # without it no kernel has been asked
    return {} if native is None else dict(native.fallbacks())


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def reset_peak_memory() -> None:
    """Start the peak of resident memory anew (Linux; elsewhere the process's whole life counts)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mb() -> float:
    """Peak resident memory of this process since `reset_peak_memory`, in MiB."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
