"""Settings of the corpus part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["CorpusSettings"]


class CorpusSettings(Section):
    """What the corpus part reads from a profile."""
