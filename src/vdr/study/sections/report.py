"""Settings of the report part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["ReportSettings"]


class ReportSettings(Section):
    """What the report part reads from a profile."""
