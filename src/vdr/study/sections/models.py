"""Settings of the models part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["ModelsSettings"]


class ModelsSettings(Section):
    """What the models part reads from a profile."""
