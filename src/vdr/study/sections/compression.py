"""Settings of the compression part (EV §5, §6.3–6.5)."""

from __future__ import annotations

from pydantic import Field, model_validator

from vdr.study.base import Section

__all__ = ["CompressionSettings"]


class CompressionSettings(Section):
    """Which encoder is compressed, and at which widths and budgets. The defaults are EV's."""

    arm: str = Field("baseline", description="arm whose student is compressed")
    seed: int = Field(0, ge=0, description="its training seed")
    trained_widths: tuple[int, ...] = Field(
        (), description="widths that the arm was trained at; empty: its losses' own, or the full width alone. Others are post hoc"
    )
    widths: tuple[int, ...] = Field((64, 128, 256, 512, 1024, 2048), description="prefix widths of Table 9, rising")
    d: int = Field(64, ge=1, description="primary width")
    k: int = Field(32, ge=1, description="primary centroid budget")
    second_k: int = Field(64, ge=1, description="the second budget at the primary width")
    w_pos: float = Field(0.1, ge=0, le=1, description="weight of position in the clustering features")
    w_pos_sweep: tuple[float, ...] = Field((0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), description="App. C's sweep")
    payload_widths: tuple[int, ...] = Field((64, 128, 256), description="widths of the equal-payload comparison (Table 11)")
    budgets: tuple[int, ...] = Field((2048, 4096, 8192), description="K·d of its budgets")
    depth: int = Field(100, ge=10, description="hits kept a query")
    cascade: int = Field(100, ge=1, description="pages that the cascade's first stage keeps")
    serving_pages: int = Field(1000, ge=1, description="pages of the serving corpus, spread evenly over the data sets")
    serving_queries: int = Field(200, ge=1, description="queries timed one by one")
    serving_suite: str = Field("v3", description="suite that the serving corpus and the evidence cases come from")
    batch: int = Field(16, ge=1, description="queries of a batch when throughput is measured")
    transfer: tuple[str, ...] = Field(
        ("student", "base", "miner"), description="encoders of Table 18: the student, its untrained start, the miner"
    )
    lost_rank: int = Field(10, ge=3, description="a query is lost when raw ranks its page in the top 3 and HAC beyond this rank")

    @model_validator(mode="after")
    def _consistent(self) -> CompressionSettings:
        if list(self.widths) != sorted(set(self.widths)):
            raise ValueError("widths must rise")
        if self.d not in self.widths:
            raise ValueError(f"the primary width {self.d} is not among the widths")
        return self
