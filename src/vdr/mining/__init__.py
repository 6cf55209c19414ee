"""Candidate mining: a two-stage search to frozen pools, and the scored pool that the teacher is asked about."""

from vdr.mining.draws import draw
from vdr.mining.files import read_pools, read_scored_pool, write_pools, write_scored_pool
from vdr.mining.scored import build_scored_pool, scored_pool
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
