"""The vision cache of every collection, several collections at a time."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import as_completed
from pathlib import Path

from vdr.children import FreshProcesses
from vdr.corpus.access import load_suites, load_train
from vdr.evaluation.encode import build_vision_cache
from vdr.progress import PROGRESS_FILE, track
from vdr.study.sections.hardware import HardwareSettings
from vdr.study.sections.training import TrainingSettings

__all__ = ["cache_all"]

TRAIN = "train"


def _sizes(corpus: Path) -> dict[str, int]:
    """Pages of every collection by its place in the cache, the largest first."""
    sizes = {TRAIN: len(load_train(corpus).pages)}
    sizes |= {f"{data.suite}/{data.name}": len(data.pages) for data in load_suites(corpus)}
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def _cache_one(
    name: str, corpus: Path, backbone: Path, settings: TrainingSettings, out: Path, device: str, threads: int
) -> str:
    if name == TRAIN:
        pages = load_train(corpus).pages
    else:
        pages = next(data.pages for data in load_suites(corpus) if f"{data.suite}/{data.name}" == name)
    work = out / "partial" / name
    build_vision_cache(pages, backbone, work, settings, device=device, threads=threads, label=f"vision {name}")
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    os.rename(work, out / name)  # a collection's cache is there whole or not at all, so a stopped stage goes on
    return name


def _silent(folder: str) -> None:
    """For a fresh process: its parent counts collections."""
    os.environ[PROGRESS_FILE] = os.path.join(folder, f"{os.getpid()}.json")


def cache_all(
    corpus: Path, backbone: Path, settings: TrainingSettings, out: Path, hardware: HardwareSettings
) -> dict[str, int]:
    """Write `out/train` and `out/<suite>/<data set>`; returns pages by collection. What is there already is kept.

    Collections are spread over `hardware.processes` fresh processes; the files do not depend on how many there are.
    """
    sizes = _sizes(corpus)
    missing = [name for name in sizes if not (out / name).is_dir()]
    common = (corpus, backbone, settings, out, hardware.device, hardware.threads)
    if hardware.processes == 1 or len(missing) < 2:
        for name in missing:
            _cache_one(name, *common)
        return sizes
    with (
        tempfile.TemporaryDirectory(prefix="vdr-progress-") as folder,
        FreshProcesses(hardware.processes, _silent, (folder,)) as pool,
        track(sum(sizes[name] for name in missing), "vision", "page") as bar,
    ):
        for future in as_completed([pool.submit(_cache_one, name, *common) for name in missing]):
            bar.update(sizes[future.result()])
    return sizes
