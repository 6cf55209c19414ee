"""Settings of the evaluation part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["EvaluationSettings"]


class EvaluationSettings(Section):
    """What the evaluation part reads from a profile."""
