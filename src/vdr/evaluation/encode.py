"""Encode the pages and queries of a data set with a trained student; build the cache of frozen vision features.

Items are encoded in fixed batches, pages in the order of their ids' appearance, queries sorted by length; vectors
do not depend on the batch they were encoded in beyond rounding (tested), and the batch size stands in the
artefact's settings all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vdr.errors import BadInput
from vdr.models.processing import Processor
from vdr.models.student import Seeds, Student, TokenBatch, single_vector
from vdr.models.vectors import VectorSet, write_vectors
from vdr.models.vision_cache import CachedFeatures, FeatureSource, LiveFeatures, backbone_fingerprint, write_cache
from vdr.progress import track
from vdr.study.sections.training import TrainingSettings
from vdr.training.loop import prepare_process

__all__ = ["Encoder", "build_vision_cache", "encode_suites", "single_vectors"]


def build_vision_cache(
    pages: Any,
    backbone_dir: Path,
    out: Path,
    settings: TrainingSettings | None = None,
    *,
    device: str = "cpu",
    threads: int = 1,
    batch: int = 64,
    label: str = "vision cache",
) -> None:
    """Vision features of every page of the `PageSet` `pages`, to the directory `out` (see
    `vdr.models.vision_cache`).
    """
    prepare_process(threads, device)
    settings = settings or TrainingSettings()
    student = Student.create(backbone_dir, settings, Seeds.of(0), device)
    processor = Processor.from_pretrained(backbone_dir, max_visual_tokens=settings.max_visual_tokens)
    write_cache(
        pages,
        LiveFeatures(pages, processor, student.vision),
        backbone_fingerprint(backbone_dir),
        Path(out),
        batch=batch,
        label=label,
    )


class Encoder:
    """A trained student that encodes pages and queries to `VectorSet`s.

    Raises what `Student.load` raises. `settings` are those it was trained with (a profile's section `training`).
    """

    def __init__(
        self, checkpoint: Path, backbone_dir: Path, settings: TrainingSettings, *, device: str = "cpu", threads: int = 1
    ) -> None:
        prepare_process(threads, device)
        self.settings = settings
        self.backbone_dir = Path(backbone_dir)
        self.student = Student.load(checkpoint, backbone_dir, settings, device)
        self.processor = Processor.from_pretrained(
            backbone_dir, max_visual_tokens=settings.max_visual_tokens, augmentation_tokens=settings.augmentation_tokens
        )
        self._fingerprint: str | None = None
        self._page_tokens: dict[tuple[int, int], list[int]] = {}

    def source(self, pages: Any, cache: Path | None = None) -> FeatureSource:
        """Features of a `PageSet`: from its cache, or computed as they are asked for."""
        if cache is None:
            return LiveFeatures(pages, self.processor, self.student.vision)
        if self._fingerprint is None:
            self._fingerprint = backbone_fingerprint(self.backbone_dir)
        return CachedFeatures(cache, self._fingerprint)

    def pages(self, ids: list[str], source: FeatureSource, label: str = "encode pages") -> VectorSet:
        """Vectors of pages by id, in the order given."""
        if not ids:
            raise BadInput("no page to encode", where=label)
        merge, parts, images, grids = self.student.merge, [], [], []
        with self.student.inference(), track(len(ids), label, "page") as bar:
            for start in range(0, len(ids), self.settings.encode_batch):
                names = ids[start : start + self.settings.encode_batch]
                features, found = source.get(names)
                for grid in found:
                    if grid not in self._page_tokens:
                        tokens, mask = self.processor.page_ids(torch.tensor([[1, grid[0] * merge, grid[1] * merge]]))
                        self._page_tokens[grid] = tokens[0][mask[0].bool()].tolist()
                batch = self.student.page_batch([self._page_tokens[grid] for grid in found], found, features)
                assert batch.is_image is not None
                vectors = self.student.encode([batch])[0].cpu()
                parts += [vectors[row, batch.mask[row]] for row in range(len(names))]
                images += [batch.is_image[row, batch.mask[row]] for row in range(len(names))]
                grids += found
                bar.update(len(names))
        return VectorSet(
            list(ids), self._stack(parts), _offsets(parts), torch.cat(images).numpy(), np.array(grids, dtype=np.int32)
        )

    def queries(self, queries: Mapping[str, str], label: str = "encode queries") -> VectorSet:
        """Vectors of queries, in the mapping's order; batches are formed by length. Raises BadInput on an empty
        query.
        """
        if not queries:
            raise BadInput("no query to encode", where=label)
        tokens = []
        for name, text in queries.items():
            try:
                tokens.append(self.processor.query_ids(text))
            except BadInput as error:
                raise BadInput(
                    f"query {name!r} cannot be encoded ({error.what})", where=label, todo="leave it out"
                ) from error
        order = sorted(range(len(tokens)), key=lambda row: (len(tokens[row]), row))
        parts: list[torch.Tensor] = [torch.empty(0)] * len(tokens)
        with self.student.inference():
            for start in range(0, len(order), self.settings.encode_batch):
                members = order[start : start + self.settings.encode_batch]
                batch: TokenBatch = self.student.query_batch([tokens[row] for row in members])
                vectors = self.student.encode([batch])[0].cpu()
                for at, row in enumerate(members):
                    parts[row] = vectors[at, batch.mask[at]]
        return VectorSet(list(queries), self._stack(parts), _offsets(parts))

    def _stack(self, parts: list[torch.Tensor]) -> np.ndarray:
        return torch.cat(parts).to(getattr(torch, self.settings.vector_dtype)).numpy()


def single_vectors(vectors: VectorSet) -> np.ndarray:
    """`[n, D]` fp32: each item's mean vector, L2-normalised (the miner's first stage)."""
    lengths = np.diff(vectors.offsets)
    mask = np.arange(lengths.max())[None] < lengths[:, None]
    padded = torch.zeros(*mask.shape, vectors.width)
    padded[torch.from_numpy(mask)] = torch.from_numpy(vectors.vectors.astype(np.float32))
    return single_vector(padded, torch.from_numpy(mask)).numpy()


def encode_suites(
    checkpoint: Path,
    backbone_dir: Path,
    datasets: Any,
    caches: Path | None,
    settings: TrainingSettings,
    out: Path,
    measures: dict[str, Any],
    *,
    device: str = "cpu",
    threads: int = 1,
    label: str = "encode",
) -> None:
    """Encode every `SuiteDataset` to `<out>/<suite>/<name>/`; `caches/<suite>/<name>` are the vision caches, if any.

    measures gets counts, and pages and seconds under "timing".
    """
    import time

    encoder = Encoder(checkpoint, backbone_dir, settings, device=device, threads=threads)
    began, pages_total, queries_total = time.monotonic(), 0, 0
    for dataset in datasets:
        name = f"{dataset.suite}/{dataset.name}"
        source = encoder.source(dataset.pages, None if caches is None else Path(caches) / dataset.suite / dataset.name)
        pages = encoder.pages(list(dataset.pages.ids), source, f"{label} {name}")
        queries = encoder.queries(dataset.queries, name)
        write_vectors(Path(out) / dataset.suite / dataset.name, pages, queries)
        pages_total, queries_total = pages_total + len(pages), queries_total + len(queries)
    spent = time.monotonic() - began
    measures.update(
        pages=pages_total,
        queries=queries_total,
        batch=settings.encode_batch,
        timing={"seconds": spent, "pages_per_second": pages_total / max(spent, 1e-9)},
    )


def _offsets(parts: list[torch.Tensor]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
