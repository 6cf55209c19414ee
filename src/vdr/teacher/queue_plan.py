"""The plan of a rating pass: what an engine must offer, and the scored pool turned round into a queue by page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from vdr.errors import BadInput

__all__ = ["BatchRatingEngine", "QueuePlan", "RatingEngine", "plan_queue"]


class RatingEngine(Protocol):
    """A teacher that answers the rating prompt of App. B: in this process, or behind an OpenAI-compatible server.

    An engine is deterministic (greedy decoding). It may keep a page's prefix between calls; nothing else carries
    over.
    """

    def rate_page(self, page: Any, queries: list[str]) -> list[str]:
        """The raw reply for each query about one page, in order. Raises VdrError where the teacher cannot answer."""
        ...


@runtime_checkable
class BatchRatingEngine(Protocol):
    """An engine that is faster when it gets several pages at once (batches in this process, requests in flight at a
    server)."""

    def rate_page(self, page: Any, queries: list[str]) -> list[str]: ...

    def rate_pages(self, pages: Sequence[Any], queries: Sequence[list[str]]) -> list[list[str]]:
        """Replies for each page's queries, in order."""
        ...


@dataclass(frozen=True)
class QueuePlan:
    """pairs: row_id, page_id, rank, query, source, in queue order; shards: (first, end) positions in pairs, whole
    pages each."""

    pairs: pd.DataFrame
    shards: list[tuple[int, int]]
    digest: str

    def pages(self, shard: int) -> Iterator[tuple[str, pd.DataFrame]]:
        """The pages of a shard with their pairs, in queue order."""
        first, end = self.shards[shard]
        part = self.pairs.iloc[first:end]
        for page_id, pairs in part.groupby("page_id", sort=False):
            yield str(page_id), pairs


def plan_queue(scored: pd.DataFrame, rows: pd.DataFrame, pages_per_shard: int = 16) -> QueuePlan:
    """The queue of a scored pool. rows: row_id, query, source.

    Raises BadInput for a pair whose row is unknown, or a row without a query.
    """
    known = rows.set_index("row_id")[["query", "source"]]
    strange = scored.loc[~scored["row_id"].isin(known.index), "row_id"]
    if len(strange):
        raise BadInput(
            f"row {strange.iloc[0]} is not in the corpus", where="scored_pool.row_id", todo="mine this corpus"
        )
    pairs = scored[["row_id", "page_id", "rank"]].join(known, on="row_id")
    blank = pairs.loc[pairs["query"].isna() | (pairs["query"].str.strip() == ""), "row_id"]
    if len(blank):
        raise BadInput(f"row {blank.iloc[0]} has no query", where="rows.query", todo="drop it from the corpus")
    pairs = pairs.sort_values(["page_id", "row_id"], kind="stable").reset_index(drop=True)
    starts = np.flatnonzero((pairs["page_id"] != pairs["page_id"].shift()).to_numpy())
    cuts = [*starts[::pages_per_shard].tolist(), len(pairs)]
    text = "\n".join(pairs["page_id"] + "\t" + pairs["row_id"].astype(str) + "\t" + pairs["query"])
    digest = hashlib.sha256(f"{pages_per_shard}\n{text}".encode()).hexdigest()
    return QueuePlan(pairs, list(pairwise(cuts)) if len(pairs) else [], digest)
