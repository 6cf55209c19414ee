"""Training rows as the loop reads them: tokens, labelled pages, negatives, candidates with ratings, maps,
descriptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from vdr.errors import BadInput, DamagedArtefact
from vdr.models.processing import Processor
from vdr.models.student import Seeds, Student, TokenBatch
from vdr.models.vision_cache import FeatureSource
from vdr.study.sections.training import ArmLosses, TrainingSettings

__all__ = ["Batch", "Collator", "TrainingRows", "batch_rows", "steps_per_epoch"]


@dataclass
class TrainingRows:
    """One arm's rows in row_id order; query and description token ids; `maps [R, P]` where the arm reads them."""

    row_ids: list[int]
    pages: list[str]
    queries: list[list[int]]
    negatives: list[list[str]]
    candidates: list[list[str]]
    ratings: list[list[float]]
    weights: list[float]
    descriptions: list[list[int] | None]
    maps: dict[int, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.row_ids)

    @classmethod
    def read(
        cls, rows_dir: Path, maps_path: Path | None, processor: Processor, losses: ArmLosses, settings: TrainingSettings
    ) -> TrainingRows:
        """Read `rows.parquet` (and `maps.npz`). Raises BadInput when the rows lack what the arm's losses read."""
        file = Path(rows_dir) / "rows.parquet"
        try:
            frame = pd.read_parquet(file)
        except (OSError, ValueError) as error:
            raise DamagedArtefact(
                f"rows cannot be read ({type(error).__name__}: {error})", where=file, todo="make the rows again"
            ) from error
        for column in ("row_id", "query", "page_id"):
            if column not in frame:
                raise BadInput(f"no column {column!r}", where=file)
        frame = frame.sort_values("row_id", kind="stable")
        if frame["row_id"].duplicated().any():
            raise BadInput("a row_id occurs more than once", where=file)
        count = len(frame)

        def lists(name: str) -> list[list]:
            return (
                [list(value) if value is not None else [] for value in frame[name]]
                if name in frame
                else [[] for _ in range(count)]
            )

        described: list[list[int] | None] = [None] * count
        if losses.description is not None:
            texts = list(frame["description"]) if "description" in frame else []
            described = [
                _cut(processor.query_ids(text), settings) if isinstance(text, str) and text.strip() else None
                for text in texts
            ] or described
            if not any(described):
                raise BadInput(
                    "the arm's description loss finds no description", where=file, todo="make the rows for this arm"
                )
        weights = [float(value) for value in frame["target_weight"]] if "target_weight" in frame else [1.0] * count
        rows = cls(
            [int(x) for x in frame["row_id"]],
            list(frame["page_id"]),
            [processor.query_ids(text) for text in frame["query"]],
            lists("negatives"),
            lists("candidates"),
            lists("targets"),
            weights,
            described,
        )
        if losses.score is not None:
            if not any(rows.candidates):
                raise BadInput(
                    "the arm's score loss finds no candidates", where=file, todo="make the rows for this arm"
                )
            for row, names, values in zip(rows.row_ids, rows.candidates, rows.ratings, strict=True):
                if len(names) != len(values):
                    raise BadInput(f"row {row} has {len(names)} candidates and {len(values)} targets", where=file)
        else:
            rows.candidates, rows.ratings = [[] for _ in range(count)], [[] for _ in range(count)]
        if losses.attention is not None:
            rows.maps = _read_maps(maps_path, file)
        return rows


def _cut(ids: list[int], settings: TrainingSettings) -> list[int]:
    """A description's tokens, cut in front of its augmentation tokens where it is too long."""
    over = len(ids) - settings.max_description_tokens
    end = len(ids) - settings.augmentation_tokens
    return ids if over <= 0 else ids[: max(1, end - over)] + ids[end:]


def _read_maps(path: Path | None, rows_file: Path) -> dict[int, torch.Tensor]:
    if path is None:
        raise BadInput("the arm's attention loss needs maps", where=rows_file, todo="give maps_path")
    try:
        with np.load(path) as data:
            ids, maps = data["row_id"], data["maps"]
            if maps.dtype == object:
                raise ValueError("maps of several sizes")
    except (OSError, ValueError, KeyError) as error:
        raise DamagedArtefact(
            f"maps cannot be read ({type(error).__name__}: {error})", where=path, todo="make the maps again"
        ) from error
    if len(ids) != len(maps) or not np.isfinite(maps).all():
        raise DamagedArtefact("maps are not finite, or not one a row_id", where=path, todo="make the maps again")
    return {
        int(row): torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        for row, values in zip(ids, maps, strict=True)
    }


def steps_per_epoch(rows: int, batch: int) -> int:
    """Whole batches in a pass; an incomplete last one is left out (WT: 118,184 rows at 32 are 3,693 steps)."""
    if rows < batch:
        raise BadInput(f"{rows} rows do not fill one batch of {batch}", where="training.batch_size")
    return rows // batch


def batch_rows(step: int, rows: int, batch: int, seeds: Seeds) -> list[int]:
    """Row indices of step `step` (from 0). The order is a permutation per epoch that depends on the order seed
    alone, so that every arm of a seed sees the same rows in the same order and a resumed run knows its place from
    the step's number.
    """
    epoch, place = divmod(step, steps_per_epoch(rows, batch))
    digest = hashlib.sha256(f"order:{seeds.order}:{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    order = torch.randperm(rows, generator=generator)
    return order[place * batch : (place + 1) * batch].tolist()


@dataclass
class Batch:
    """One step's input: every distinct page once, the labelled ones first.

    pages: all P' distinct pages; labelled: how many of them (P) are labelled pages of the batch, the in-batch
    columns; positive `[B]` each row's column; negatives `[B, C]` rows of `pages` with mask; candidates, ratings
    `[B, K]` with mask and row weights `[B]`; maps `[B, N]` with present `[B]`; descriptions of the rows in
    `described`.
    """

    pages: TokenBatch
    queries: TokenBatch
    labelled: int
    positive: torch.Tensor
    row_ids: list[int]
    negatives: torch.Tensor | None = None
    negative_mask: torch.Tensor | None = None
    candidates: torch.Tensor | None = None
    candidate_mask: torch.Tensor | None = None
    ratings: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    maps: torch.Tensor | None = None
    map_present: torch.Tensor | None = None
    descriptions: TokenBatch | None = None
    described: torch.Tensor | None = None


class Collator:
    """Makes batches from rows. `student` lays out tokens, `source` gives vision features."""

    def __init__(
        self, rows: TrainingRows, student: Student, processor: Processor, source: FeatureSource, losses: ArmLosses
    ) -> None:
        self.rows, self.student, self.processor, self.source, self.losses = rows, student, processor, source, losses
        self._page_ids: dict[tuple[int, int], list[int]] = {}

    def page_tokens(self, grid: tuple[int, int]) -> list[int]:
        """A page's token ids; they depend on its grid alone."""
        if grid not in self._page_ids:
            merge = self.student.merge
            ids, mask = self.processor.page_ids(torch.tensor([[1, grid[0] * merge, grid[1] * merge]]))
            self._page_ids[grid] = ids[0][mask[0].bool()].tolist()
        return self._page_ids[grid]

    def page_batch(self, page_ids: Sequence[str]) -> TokenBatch:
        """Token batch of pages by name."""
        features, grids = self.source.get(page_ids)
        return self.student.page_batch([self.page_tokens(grid) for grid in grids], grids, features)

    def page_names(self, members: Sequence[int]) -> tuple[list[str], int]:
        """Every distinct page of these rows, labelled ones first, then negatives and candidates; and how many are
        labelled.
        """
        rows = self.rows
        names = dict.fromkeys(rows.pages[m] for m in members)
        labelled = len(names)
        for m in members:
            names.update(dict.fromkeys(rows.negatives[m]))
        for m in members:
            names.update(dict.fromkeys(rows.candidates[m]))
        return list(names), labelled

    def __call__(self, members: Sequence[int]) -> Batch:
        rows = self.rows
        names, labelled = self.page_names(members)
        place = {page: at for at, page in enumerate(names)}
        extra = [rows.negatives[m] for m in members] if any(rows.negatives[m] for m in members) else None
        scored = [rows.candidates[m] for m in members] if self.losses.score is not None else None
        batch = Batch(
            self.page_batch(names),
            self.student.query_batch([rows.queries[m] for m in members]),
            labelled,
            torch.tensor([place[rows.pages[m]] for m in members]),
            [rows.row_ids[m] for m in members],
        )
        if extra is not None:
            batch.negatives, mask = _index(extra, place)
            # A page that is already a column of the batch stands in the denominator once (as the labelled page or as an
            # in-batch negative), not twice.
            batch.negative_mask = mask & (batch.negatives >= labelled)
        if scored is not None:
            batch.candidates, batch.candidate_mask = _index(scored, place)
            given = [rows.ratings[m] for m in members]
            batch.ratings = torch.zeros(batch.candidates.shape)
            for at, row in enumerate(given):
                batch.ratings[at, : len(row)] = torch.tensor(row, dtype=torch.float32)
            batch.weights = torch.tensor([rows.weights[m] if rows.candidates[m] else 0.0 for m in members])
        if self.losses.attention is not None:
            found = [rows.maps.get(rows.row_ids[m]) for m in members]
            width = max((len(values) for values in found if values is not None), default=1)
            batch.maps = torch.zeros(len(members), width)
            for at, values in enumerate(found):
                if values is not None:
                    batch.maps[at, : len(values)] = values
            batch.map_present = torch.tensor([values is not None for values in found])
        if self.losses.description is not None:
            texts = [rows.descriptions[m] for m in members]
            batch.described = torch.tensor([at for at, text in enumerate(texts) if text is not None], dtype=torch.long)
            if len(batch.described):
                batch.descriptions = self.student.query_batch([text for text in texts if text is not None])
        return batch


def _index(groups: Sequence[Sequence[str]], place: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(1, max(len(group) for group in groups))
    index = torch.zeros(len(groups), width, dtype=torch.long)
    mask = torch.zeros(len(groups), width, dtype=torch.bool)
    for row, group in enumerate(groups):
        index[row, : len(group)] = torch.tensor([place[page] for page in group], dtype=torch.long)
        mask[row, : len(group)] = True
    return index, mask
