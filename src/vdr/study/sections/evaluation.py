"""Settings of evaluation (WT §3: nDCG@5, exact MaxSim search)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vdr.study.base import Section

__all__ = ["EvaluationSettings"]


class EvaluationSettings(Section):
    """How checkpoints are searched and scored; the same for every arm of a profile."""

    depth: int = Field(100, ge=1, description="hits kept per query in the run files")
    cutoff: int = Field(5, ge=1, description="k of nDCG@k")
    gain: Literal["linear", "exponential"] = Field("linear", description="grade (WT) or 2^grade - 1 (EV)")
    cross_check: bool = Field(True, description="compare every query with pytrec_eval while evaluating")
