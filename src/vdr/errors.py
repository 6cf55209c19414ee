"""Errors that a user can act on.

Every error of this family says what is wrong, where (file and field), and what to do, in one line. The command line prints
that line alone and exits with the class's `exit_code`; anything else that escapes is a defect of the package and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["BadInput", "Busy", "DamagedArtefact", "NoSpace", "NotWritable", "UnfitMachine", "VdrError", "did_you_mean"]


class VdrError(Exception):
    """Base class. `where` names the file or field, `todo` the remedy; both are optional and end up in the one line."""

    exit_code = 2

    def __init__(self, what: str, *, where: str | Path | None = None, todo: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.todo = todo
        super().__init__(what)

    def __str__(self) -> str:
        """One line: `where: what; todo`."""
        line = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.todo:
            line = f"{line.rstrip('.')}; {self.todo}"
        return " ".join(line.split())

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions travel between processes by pickle, which would otherwise lose the keyword arguments.
        return (_rebuild, (type(self), self.what, self.where, self.todo))


def _rebuild(kind: type[VdrError], what: str, where: str | None, todo: str | None) -> VdrError:
    return kind(what, where=where, todo=todo)


class BadInput(VdrError):
    """Something the user gave (name, setting, file) is unknown, malformed or out of range."""


class DamagedArtefact(VdrError):
    """An artefact or data file is not what its manifest says."""

    exit_code = 3


class Busy(VdrError):
    """Another process is writing the same artefact."""

    exit_code = 4


class UnfitMachine(VdrError):
    """The machine lacks something that cannot be worked around: Python version, memory, device, package."""

    exit_code = 5


class NoSpace(VdrError):
    """The disk is full, or the quota is used up; nothing half-written has been published."""

    exit_code = 6


class NotWritable(NoSpace):
    """A place may not be written: a read-only disk, or another user's folder."""


def did_you_mean(name: str, known: Iterable[str], *, n: int = 3) -> str:
    """The remedy line for an unknown name: the nearest known names, or all of them when none is near.

    >>> did_you_mean("mni", ["mini", "paper"])
    "did you mean 'mini'? Known: mini, paper"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=n, cutoff=0.6)
    listing = ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + ", …"
    if near:
        return f"did you mean {' or '.join(repr(item) for item in near)}? Known: {listing}"
    return f"known: {listing}" if names else "none is known"
