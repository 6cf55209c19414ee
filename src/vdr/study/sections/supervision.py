"""Settings of the rating queue and of the training rows (WT §3, Appendices B and J)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vdr.study.base import Section

__all__ = ["QueueSettings", "SupervisionSettings"]


class QueueSettings(Section):
    """The rating pass, ordered by page."""

    pages_per_shard: int = Field(
        16, ge=1, description="pages rated between two writes, and offered at once to the engine"
    )
    workers: int = Field(1, ge=1, description="processes, each with its own engine")
    compare_pages: int = Field(0, ge=0, description="pages on which page order and query order are timed; 0: not timed")


class SupervisionSettings(Section):
    """What holds for every arm alike. Which candidates and targets an arm takes stands in the arm's own entry."""

    distil_labelled: Literal["retrieved", "always"] = Field(
        "retrieved",
        description="when S may draw the labelled page: where the miner found it, or always",
    )
    queue: QueueSettings = QueueSettings()
