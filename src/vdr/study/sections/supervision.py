"""Settings of the supervision part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["SupervisionSettings"]


class SupervisionSettings(Section):
    """What the supervision part reads from a profile."""
