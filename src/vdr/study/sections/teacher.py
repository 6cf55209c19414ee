"""Settings of the teacher part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["TeacherSettings"]


class TeacherSettings(Section):
    """What the teacher part reads from a profile."""
