"""What every settings class has in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """Frozen, and deaf to fields it does not know: a misspelt setting is an error and never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def plain(self) -> dict[str, Any]:
        """The settings as plain JSON data, the form in which they enter an artefact's key."""
        return self.model_dump(mode="json")
