"""The frozen vision tower's output, computed once a page and read by training and encoding.

The vision tower never trains, so a page's merged features are the same at every step, in every arm and at every
seed. A cache directory holds `features.safetensors` (`features` fp32 `[sum n, H]`, `offsets` int64 `[pages + 1]`,
`grid` int32 `[pages, 2]`: merged rows and columns) and `cache.json` (page ids in the order of the offsets, the
backbone weights' sha256). `LiveFeatures` gives the same features without a cache, for corpora whose features would
not fit a disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vdr.errors import BadInput, DamagedArtefact
from vdr.models.processing import Processor
from vdr.models.vision import patchify
from vdr.progress import track

__all__ = ["CachedFeatures", "FeatureSource", "LiveFeatures", "backbone_fingerprint", "write_cache"]

FEATURES = "features.safetensors"
INDEX = "cache.json"


class FeatureSource(Protocol):
    """Where vision features of pages come from."""

    def get(self, page_ids: Sequence[str]) -> tuple[list[torch.Tensor], list[tuple[int, int]]]:
        """Features `[h·w, H]` and merged grid (h, w) of each page, in the order asked."""

    def prefetch(self, page_ids: Sequence[str]) -> None:
        """A hint that these pages, in this order, are asked for next."""


def backbone_fingerprint(directory: str | Path) -> str:
    """sha256 over a checkpoint directory's weights, so that a cache is never read with another backbone."""
    digest = hashlib.sha256()
    for file in sorted(Path(directory).glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


class LiveFeatures:
    """Features computed at every request from decoded pages; decoding and resizing run in `workers` threads, one
    request ahead.

    `vision` maps (pixel values, grids) to a list of features (`Student.vision`); `pages` is a `PageSet`.
    """

    def __init__(self, pages: Any, processor: Processor, vision: Any, workers: int = 1) -> None:
        self.pages, self.processor, self.vision = pages, processor, vision
        self._pool = ThreadPoolExecutor(max_workers=max(1, workers))
        self._reading = Lock()  # a page set reads one file
        self._ahead: tuple[tuple[str, ...], list[Future[tuple[torch.Tensor, torch.Tensor]]]] | None = None

    def get(self, page_ids: Sequence[str]) -> tuple[list[torch.Tensor], list[tuple[int, int]]]:
        if self._ahead is None or self._ahead[0] != tuple(page_ids):
            self.prefetch(page_ids)
        assert self._ahead is not None
        futures, self._ahead = self._ahead[1], None
        parts = [future.result() for future in futures]
        grid_thw = torch.cat([grid for _, grid in parts])
        grids = [(int(h), int(w)) for h, w in self.processor.merged_grid(grid_thw).tolist()]
        return self.vision(torch.cat([pixels for pixels, _ in parts]), grid_thw), grids

    def prefetch(self, page_ids: Sequence[str]) -> None:
        self._ahead = tuple(page_ids), [self._pool.submit(self._pixels, page) for page in page_ids]

    def _pixels(self, page: str) -> tuple[torch.Tensor, torch.Tensor]:
        with self._reading:
            image = self.pages.image(self.pages.index(page))
        rules = self.processor.image_processor
        unit, (width, height) = rules.patch_size * rules.merge_size, image.size
        if (
            width % unit
            or height % unit
            or not rules.size["shortest_edge"] <= width * height <= rules.size["longest_edge"]
        ):
            return self.processor.pixels([image], [page])
        # Nothing to resize: the same patches without the image processor's cost a page.
        patches = patchify(torch.from_numpy(np.array(image))[None], rules)[0]
        return patches, torch.tensor([[1, height // rules.patch_size, width // rules.patch_size]])


class CachedFeatures:
    """Features read from a cache directory. Raises DamagedArtefact when it cannot be read or belongs to another
    backbone.
    """

    def __init__(self, directory: str | Path, fingerprint: str | None = None) -> None:
        self.directory = Path(directory)
        try:
            index = json.loads((self.directory / INDEX).read_text(encoding="utf-8"))
            tensors = load_file(self.directory / FEATURES)
            self.ids: list[str] = index["pages"]
            self.features, self.offsets = tensors["features"], tensors["offsets"].tolist()
            self.grid = [(int(h), int(w)) for h, w in tensors["grid"].tolist()]
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise DamagedArtefact(
                f"vision cache cannot be read ({type(error).__name__}: {error})", where=directory, todo="build it again"
            ) from error
        if fingerprint is not None and index.get("backbone") != fingerprint:
            raise DamagedArtefact(
                "vision cache was made with other backbone weights", where=directory, todo="build it again"
            )
        if (
            len(self.offsets) != len(self.ids) + 1
            or len(self.grid) != len(self.ids)
            or self.offsets[-1] != len(self.features)
        ):
            raise DamagedArtefact("vision cache's parts do not fit together", where=directory, todo="build it again")
        self.rows = {page: row for row, page in enumerate(self.ids)}

    def get(self, page_ids: Sequence[str]) -> tuple[list[torch.Tensor], list[tuple[int, int]]]:
        try:
            rows = [self.rows[page] for page in page_ids]
        except KeyError as error:
            raise BadInput(
                f"page {error} is not in the vision cache", where=self.directory, todo="build the cache for this corpus"
            ) from error
        return [self.features[self.offsets[row] : self.offsets[row + 1]] for row in rows], [
            self.grid[row] for row in rows
        ]

    def prefetch(self, page_ids: Sequence[str]) -> None:
        """Nothing to do: everything is in memory."""


def write_cache(
    pages: Any, source: FeatureSource, fingerprint: str, out: Path, *, batch: int = 64, label: str = "vision cache"
) -> None:
    """Write the cache of every page of the `PageSet` `pages`, in its order; the same pages give the same bytes.

    Raises BadInput when `pages` is empty or a page cannot be decoded.
    """
    ids = list(pages.ids)
    if not ids:
        raise BadInput("no page to encode", where="pages")
    parts: list[torch.Tensor] = []
    grids: list[tuple[int, int]] = []
    with track(len(ids), label, "page") as bar:
        for start in range(0, len(ids), batch):
            features, found = source.get(ids[start : start + batch])
            parts += [part.float().cpu() for part in features]
            grids += found
            bar.update(len(found))
    offsets = torch.tensor(np.concatenate([[0], np.cumsum([len(part) for part in parts])]), dtype=torch.int64)
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {"features": torch.cat(parts), "offsets": offsets, "grid": torch.tensor(grids, dtype=torch.int32)},
        out / FEATURES,
    )
    text = json.dumps({"pages": ids, "backbone": fingerprint}, ensure_ascii=False)
    (out / INDEX).write_text(text + "\n", encoding="utf-8")
