"""Settings of the human audit (WT §3, App. K; EV App. C)."""

from __future__ import annotations

from pydantic import Field, model_validator

from vdr.study.base import Section

__all__ = ["AuditSettings", "EvidenceAuditSettings", "SimulatedSettings"]


class SimulatedSettings(Section):
    """Ranges from which each *simulated* annotator's rates are drawn (see `vdr.audit.simulate.SimulatedAnnotator`)."""

    strictness: tuple[float, float] = Field(
        (-0.35, 0.45), description="chance of taking a true grade 2 for a 1; negative: a true 1 for a 2"
    )
    error: tuple[float, float] = Field((0.02, 0.12), description="chance of turning the decision round")
    cannot_judge: tuple[float, float] = Field((0.0, 0.15), description="chance of answering x")
    seconds: tuple[float, float] = Field((8.0, 41.0), description="median seconds a judgement")
    seed: int = Field(11, ge=0, description="seed of rates and grades")
    repeats: int = Field(100, ge=0, description="simulated studies of the coverage check")

    @model_validator(mode="after")
    def _ordered(self) -> SimulatedSettings:
        for name in ("strictness", "error", "cannot_judge", "seconds"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the range runs from {low} down to {high}")
        return self


class EvidenceAuditSettings(Section):
    """EV: 900 candidates, 300 a judge tier, three annotators."""

    per_tier: int = Field(300, ge=1, description="candidates drawn from each judge tier")
    annotators: int = Field(3, ge=3, description="annotators, each of whom grades every candidate; odd")


class AuditSettings(Section):
    """WT: fifty queries, twenty with their labelled page, four pages each, ten annotators in a ring."""

    queries: int = Field(50, ge=1, description="audited queries; a multiple of annotators")
    with_labelled: int = Field(20, ge=0, description="queries that show their labelled page; a multiple of annotators")
    pages_per_query: int = Field(4, ge=2, description="pages shown for a query")
    annotators: int = Field(10, ge=3, description="annotators of the ring, and blocks")
    seed: int = Field(0, ge=0, description="seed of draw, blocks and orders")
    ocr: bool = Field(False, description="read pages without text with RapidOCR for the transcript")
    evidence: EvidenceAuditSettings = EvidenceAuditSettings()
    simulated: SimulatedSettings = SimulatedSettings()
