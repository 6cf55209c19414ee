"""Is the machine fit for a profile, and a process made ready for it: threads, determinism."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from vdr import instructions
from vdr.errors import NoSpace, UnfitMachine
from vdr.study.sections.hardware import HardwareSettings

__all__ = ["check", "prepare"]


def prepare(settings: HardwareSettings) -> None:
    """Fix the number of threads and ask for deterministic kernels, so that the same command gives the same bytes.

    Sums are split differently over another number of threads; so the profile names it, and it is the same in every process.
    """
    instructions.check(settings.instructions)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # must be set before CUDA starts (WT App. F)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading weights is told by the stage's own line
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    # Only slower: nothing here reads memory before writing it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if settings.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = False


def check(settings: HardwareSettings, outputs: Path) -> None:
    """Raises `UnfitMachine` (Python, memory, device) or `NoSpace` (disk) with one line, before anything has run."""
    if sys.version_info[:2] != (3, 11):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise UnfitMachine(f"Python 3.11 is needed, this is {version}", todo="run `make setup` with PYTHON=/path/to/python3.11")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if memory < settings.memory_gb:
        raise UnfitMachine(
            f"{memory:.1f} GB of memory, the profile needs {settings.memory_gb:g}",
            where="hardware.memory_gb",
            todo="lower hardware.processes and this setting, or use a larger machine",
        )
    place = outputs
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 2**30
    if free < settings.disk_gb:
        raise NoSpace(
            f"{free:.1f} GB free, the profile needs {settings.disk_gb:g}", where=place, todo="free some space, or set VDR_OUTPUTS"
        )
    instructions.check(settings.instructions)
    if settings.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UnfitMachine("no CUDA device here", where="hardware.device", todo="use the mini profile, or a GPU node")
