"""What every settings class has in common."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Section"]

#: Which Python types may stand for a setting of a type. pydantic alone would take `true` for 1.0, and "1" for true.
_KINDS: dict[Any, tuple[type, ...]] = {bool: (bool,), int: (int, float), float: (int, float)}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}


class Section(BaseModel):
    """Frozen, and deaf to fields it does not know: a misspelt setting is an error and never a silent default.

    A value keeps the kind it was written in: neither `true` nor `"0.1"` is a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _kinds_stay(cls, given: Any) -> Any:
        # For the whole section at once: pydantic allows no field validator here where the field tells a union's members apart.
        for name, value in given.items() if isinstance(given, Mapping) else ():
            wanted = _misfit(cls.model_fields[name].annotation, value) if name in cls.model_fields else None
            if wanted is not None:
                raise PydanticCustomError("kind", "write {wanted} (given: {given})",
                                          {"field": name, "wanted": _WORDS[wanted], "given": repr(value)})  # fmt: skip
        return given

    def plain(self) -> dict[str, Any]:
        """The settings as plain JSON data, the form in which they enter an artefact's key."""
        return self.model_dump(mode="json")


def _misfit(annotation: Any, value: Any) -> Any:
    """The plain type that `value`, or something in it, should have had; None where all fits or is for others to judge."""
    if annotation in _KINDS:
        return None if type(value) in _KINDS[annotation] else annotation
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _misfit(inner[0], value)
    if origin in (typing.Union, types.UnionType):
        misfits = [_misfit(kind, value) for kind in inner if kind is not type(None)]
        return None if value is None or None in misfits else misfits[0]
    if origin in (list, tuple, set, frozenset) and isinstance(value, (list, tuple)):
        return next((wrong for item in value if (wrong := _misfit(inner[0], item)) is not None), None)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return next((wrong for item in value.values() if (wrong := _misfit(inner[1], item)) is not None), None)
    return None
