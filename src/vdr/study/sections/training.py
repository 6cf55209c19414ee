"""Settings of the training part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["TrainingSettings"]


class TrainingSettings(Section):
    """What the training part reads from a profile."""
