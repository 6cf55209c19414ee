"""Settings of the audit part."""

from __future__ import annotations

from vdr.study.base import Section

__all__ = ["AuditSettings"]


class AuditSettings(Section):
    """What the audit part reads from a profile."""
