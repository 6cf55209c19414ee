"""Settings of the two-stage miner and of the scored pool (WT §3, Appendices J and O)."""

from __future__ import annotations

from pydantic import Field

from vdr.study.base import Section

__all__ = ["MiningSettings"]


class MiningSettings(Section):
    """How candidates are mined and which of them the teacher is asked about."""

    depth: int = Field(
        5000, ge=1, description="pages the single-vector search hands to MaxSim (all, where the corpus is smaller)"
    )
    pool: int = Field(100, ge=1, description="candidates kept per row after MaxSim, the frozen pool")
    top: int = Field(20, ge=0, description="first ranks that are all scored, the row's labelled page left out")
    band: int = Field(10, ge=1, description="width in ranks of each deeper band, of which one candidate is scored")
    last_rank: int = Field(100, ge=1, description="deepest rank of the deepest band")
    draw_seed: int = Field(
        0, ge=0, description="seed of the draw inside each band; pools are frozen, so it is not a training seed"
    )
    shard_rows: int = Field(
        256, ge=1, description="rows mined between two writes to disk; a killed run repeats at most these"
    )
    device: str = Field("cpu", description="torch device of the search")
