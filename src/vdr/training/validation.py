"""Validation of a student in training, on the training corpus' own validation split; no suite is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from vdr.errors import BadInput
from vdr.kernels.maxsim import maxsim
from vdr.losses import infonce
from vdr.models.student import Student
from vdr.training.data import Collator

__all__ = ["Validation"]


class Validation:
    """Rows of the validation split: full InfoNCE (every validation page in every denominator) and nDCG@5 of the
    labelled page.

    Both read the incomplete labels, as a user without complete ones would; they are for choosing a recipe's length
    and for watching a run, and every arm is measured by the same two numbers.
    """

    def __init__(
        self,
        queries: Sequence[Sequence[int]],
        labelled: Sequence[str],
        collator: Collator,
        student: Student,
        temperature: float,
        batch: int,
    ) -> None:
        if not queries:
            raise BadInput("the validation split has no row", where="rows.parquet")
        self.queries, self.labelled = list(queries), list(labelled)
        self.pages = sorted(set(labelled))
        place = {page: at for at, page in enumerate(self.pages)}
        self.positive = torch.tensor([place[page] for page in labelled])
        self.collator, self.student, self.temperature, self.batch = collator, student, temperature, batch

    def __call__(self) -> dict[str, float]:
        """`{"infonce": …, "ndcg5": …}`; nDCG in points (0–100), ties by page id ascending."""
        scores = self._scores()
        own = scores.gather(1, self.positive[:, None])
        # Pages are in ascending order, so a tied page counts as above when its index is smaller.
        above = (scores > own) | ((scores == own) & (torch.arange(len(self.pages))[None] < self.positive[:, None]))
        ranks = above.sum(1).numpy() + 1
        gain = np.where(ranks <= 5, 1 / np.log2(ranks + 1.0), 0.0)
        loss = float(infonce(scores, self.positive, self.temperature))
        return {"infonce": loss, "ndcg5": 100 * math.fsum(gain.tolist()) / len(gain)}

    def _scores(self) -> torch.Tensor:
        """Query-mean MaxSim of every validation query with every validation page, fp32 on the CPU."""
        with self.student.inference():
            pages = []
            for start in range(0, len(self.pages), self.batch):
                batch = self.collator.page_batch(self.pages[start : start + self.batch])
                pages.append((self.student.encode([batch])[0], batch.mask))
            rows = []
            for start in range(0, len(self.queries), self.batch):
                batch = self.student.query_batch(self.queries[start : start + self.batch])
                vectors = self.student.encode([batch])[0]
                mask = batch.mask.to(vectors.device)
                rows.append(
                    torch.cat(
                        [
                            maxsim(vectors, page, mask, page_mask.to(page.device), "mean").cpu()
                            for page, page_mask in pages
                        ],
                        1,
                    )
                )
        return torch.cat(rows)
