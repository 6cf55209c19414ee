"""Settings of the mining part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["MiningSettings"]


class MiningSettings(Section):
    """What the mining part reads from a profile."""
