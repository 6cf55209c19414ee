"""Settings of tables, figures, notebooks and the recorded run."""

from __future__ import annotations

from pydantic import Field

from vdr.study.base import Section

__all__ = ["ReportSettings"]


class ReportSettings(Section):
    """What the record of a run keeps and how it is shown."""

    recorded_depth: int = Field(10, ge=5, description="hits per query that the record keeps of each run file")
    file_limit_kib: int = Field(512, ge=1, description="reports larger than this stay out of the record")
    notebook_timeout_s: int = Field(600, ge=1, description="longest time for one notebook cell")
