"""Candidate mining: a two-stage search to frozen pools, and the scored pool that the teacher is asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vdr.mining.draws import draw
from vdr.mining.files import read_pools, read_scored_pool, write_pools, write_scored_pool
from vdr.mining.scored import build_scored_pool, scored_pool

if TYPE_CHECKING:
    from vdr.mining.search import mean_vectors, merge_pools, mine_pools

__all__ = [
    "build_scored_pool",
    "draw",
    "mean_vectors",
    "merge_pools",
    "mine_pools",
    "read_pools",
    "read_scored_pool",
    "scored_pool",
    "write_pools",
    "write_scored_pool",
]


def __getattr__(name: str) -> Any:
    # The search needs torch; readers of its tables (statistics, reports, rating processes) do not.
    if name in ("mean_vectors", "merge_pools", "mine_pools"):
        from vdr.mining import search

        return getattr(search, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
