"""Settings of the compression part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["CompressionSettings"]


class CompressionSettings(Section):
    """What the compression part reads from a profile."""
