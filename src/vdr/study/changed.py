"""What sets a run's settings apart from the profile that ships, and the name that its outputs get for it.

Record, tables and figures belong to the settings they were made with. A profile as it ships writes to `outputs/<profile>`;
any other settings, be they from `--set` or from a file of one's own, write to a place whose name says what was changed and
ends in a hash of all settings that can change a result.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

__all__ = ["Changes", "changes_between", "describe", "outputs_name"]

#: Settings that change no result: how a run is called, and what it may use of a machine.
WITHOUT_EFFECT = frozenset(
    {"name", "title", "description", "hardware.processes", "hardware.threads", "hardware.disk_gb", "hardware.memory_gb",
     "report.notebook_timeout_s"}
)  # fmt: skip
LONGEST = 60

Changes = Mapping[str, tuple[Any, Any]]


def _flat(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _flat(value, f"{prefix}{name}.")
        elif prefix + name not in WITHOUT_EFFECT:
            yield prefix + name, settings.model_dump(mode="json", include={name})[name]


def _text(value: Any) -> str:
    # Unsorted: the drawn corpus depends on the order in which its sources and data sets are listed.
    return json.dumps(value, ensure_ascii=False)


def changes_between(settings: BaseModel, shipped: BaseModel | None) -> dict[str, tuple[Any, Any]]:
    """Settings that can change a result and differ: dotted path → (value here, value as shipped). Without a shipped
    profile of that name every setting is one's own, and its shipped value is None."""
    theirs = {} if shipped is None else dict(_flat(shipped))
    here = dict(_flat(settings))
    return {path: (value, theirs.get(path)) for path, value in here.items()
            if path not in theirs or _text(value) != _text(theirs[path])}  # fmt: skip


def outputs_name(name: str, settings: BaseModel, changes: Changes, *, ships: bool) -> str:
    """`smoke` for a profile as it ships, else for instance `smoke-training.learning_rate=0.05-1f3a2b4c`."""
    if not changes:
        return name
    digest = hashlib.sha256(_text(dict(_flat(settings))).encode()).hexdigest()[:8]
    said = "-".join(f"{path}={_text(value)}" for path, (value, _) in changes.items()) if ships else ""
    said = re.sub(r"[^\w.=-]+", "_", said.replace('"', ""), flags=re.ASCII)
    return f"{name}-{said[:LONGEST]}-{digest}" if said else f"{name}-{digest}"


def describe(name: str, changes: Changes, *, ships: bool, most: int = 6) -> str:
    """In words for a table: `Profile smoke, settings as shipped` or what was changed."""
    if not changes:
        return f"Profile {name}, settings as shipped"
    if not ships:
        return f"Profile {name}, a file of one's own"
    said = [f"{path} = {_short(here)} (shipped: {_short(there)})" for path, (here, there) in list(changes.items())[:most]]
    more = f" and {len(changes) - most} more" if len(changes) > most else ""
    return f"Profile {name}, settings CHANGED: {', '.join(said)}{more}"


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
