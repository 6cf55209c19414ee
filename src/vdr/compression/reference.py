"""EV's figures, read from `outputs/reference/evie_tables.json` (transcribed with their source; nothing measured here)."""

from __future__ import annotations

import functools
import json
from typing import Any

from vdr.errors import BadInput, DamagedArtefact
from vdr.study.settings import repository_root

__all__ = ["evie"]


@functools.lru_cache(maxsize=1)
def evie() -> dict[str, Any]:
    """EV's tables by name, as transcribed. Raises BadInput when the file is missing, DamagedArtefact when it is not JSON."""
    path = repository_root() / "outputs" / "reference" / "evie_tables.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput("the paper's figures are missing", where=path, todo="restore outputs/reference from the repository") from None
    except ValueError as error:
        raise DamagedArtefact(f"is not JSON ({error})", where=path, todo="restore it from the repository") from error
