"""What a long computation keeps of itself while it runs: everything that the steps to come depend on, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import torch

from vdr.errors import BadInput, DamagedArtefact, NoSpace

__all__ = ["read_state", "write_state"]

STATE = "state.pt"
Kind = TypeVar("Kind")


def write_state(directory: Path, state: Any) -> None:
    """Keep a state, a data class with a `fingerprint` of the run it belongs to.

    Written beside and renamed, so that a kill leaves the checkpoint before.
    """
    directory.mkdir(parents=True, exist_ok=True)
    beside = directory / (STATE + ".new")
    try:
        with beside.open("wb") as stream:
            torch.save(vars(state), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, directory / STATE)
    except (OSError, RuntimeError) as error:  # torch reports a short write as RuntimeError
        beside.unlink(missing_ok=True)
        raise NoSpace(
            f"the checkpoint could not be written ({error})", where=directory, todo="free space and start again"
        ) from error


def read_state(directory: Path, fingerprint: str, kind: type[Kind]) -> Kind | None:
    """The last checkpoint, or None when there is none. Raises BadInput when it belongs to another run."""
    file = directory / STATE
    if not file.exists():
        return None
    try:
        state: Any = kind(**torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged archive raises whatever its reader stumbles over
        raise DamagedArtefact(
            f"the checkpoint cannot be read ({type(error).__name__})", where=file, todo="delete it and start again"
        ) from error
    if state.fingerprint != fingerprint:
        raise BadInput(
            "the checkpoint belongs to a run with other settings",
            where=file,
            todo="delete it, or use another directory",
        )
    return state
