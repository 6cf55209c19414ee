"""The append-only record of one annotator's judgements: one JSON line each, flushed to disk before the browser is told.

A later line for the same item changes the earlier one; nothing is ever rewritten. A line cut by a power failure is
set aside in `<annotator>.torn`, not deleted.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vdr.errors import BadInput, DamagedArtefact

__all__ = ["Changed", "Entry", "Journal", "read_journal"]

MAX_SECONDS = 24 * 3600.0


class Changed(Exception):
    """The item was judged elsewhere (another window) since this browser last looked. Carries the current entry."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        super().__init__("judged in another window")


@dataclass(frozen=True)
class Entry:
    """The state of one item: its grade, the seconds of its first judgement, how often it was judged."""

    grade: str
    seconds: float
    revision: int


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _parse(line: str, where: str) -> dict:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        raise DamagedArtefact("not a judgement line", where=where) from None
    if not isinstance(record, dict) or "event" not in record:
        raise DamagedArtefact("not a judgement line", where=where)
    return record


def read_journal(path: Path) -> list[dict]:
    """All complete lines of a journal, in order. A last line without its newline is not read (see `Journal`)."""
    data = Path(path).read_bytes()
    complete = data[: data.rfind(b"\n") + 1].decode("utf-8")
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(complete.splitlines(), 1)]


class Journal:
    """One annotator's journal, open for appending. Thread-safe; one process at a time (the server holds the study's
    lock)."""

    def __init__(
        self,
        path: Path,
        *,
        study_id: str,
        annotator: str,
        items: Collection[str],
        grades: Collection[str],
        mend: bool = True,
        clock: Callable[[], str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.study_id = study_id
        self.annotator = annotator
        self._items = frozenset(items)
        self._grades = frozenset(grades)
        self._clock = clock or _now
        self._lock = threading.Lock()
        self._state: dict[str, Entry] = {}
        self.consented = False
        if mend:  # a reader beside a running server must not touch the file
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._mend()
        if self.path.exists():
            for number, record in enumerate(read_journal(self.path), 1):
                self._take(record, f"{self.path}, line {number}")

    def _mend(self) -> None:
        """Set a torn last line aside, so that the next line starts on its own."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end == len(data):
            return
        with open(self.path.with_suffix(".torn"), "ab") as aside:
            aside.write(data[end:] + b"\n")
            aside.flush()
            os.fsync(aside.fileno())
        with open(self.path, "r+b") as handle:
            handle.truncate(end)
            os.fsync(handle.fileno())

    def _take(self, record: dict, where: str) -> None:
        if record.get("study") != self.study_id or record.get("annotator") != self.annotator:
            raise DamagedArtefact(
                "this line belongs to another study or annotator",
                where=where,
                todo="move the file out of the judgements folder",
            )
        if record["event"] == "consent":
            self.consented = True
            return
        item, grade = record.get("item"), record.get("grade")
        if item not in self._items or grade not in self._grades:
            raise DamagedArtefact(f"unknown item or grade ({item!r}, {grade!r})", where=where)
        before = self._state.get(item)
        seconds = float(record["seconds"]) if before is None else before.seconds
        self._state[item] = Entry(str(grade), seconds, 1 if before is None else before.revision + 1)

    def _append(self, record: dict) -> None:
        record = {
            **record,
            "study": self.study_id,
            "annotator": self.annotator,
            "at": self._clock(),
        }
        line = json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n"
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            start = os.fstat(descriptor).st_size
            data = line.encode("utf-8")
            try:
                # One write; a short one (full disk) is taken back so that no half line stays.
                if os.write(descriptor, data) != len(data):
                    raise OSError("short write")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, start)
                raise
        finally:
            os.close(descriptor)
        if new:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._take(record, str(self.path))

    def consent(self) -> None:
        """Record once that the annotator agreed to take part."""
        with self._lock:
            if not self.consented:
                self._append({"event": "consent"})

    def judge(self, item: str, grade: str, seconds: float, *, revision: int) -> Entry:
        """Append one judgement and return the item's new state; on disk when this returns.

        `revision` is how many judgements of this item the browser knew of. Raises `Changed` when there are more by
        now and the grade differs, `BadInput` for anything else that does not fit. The same grade again (a repeated
        request) adds no line.
        """
        if item not in self._items:
            raise BadInput(f"item {item!r} is not among this annotator's", where="judgement, field item")
        if grade not in self._grades:
            raise BadInput(
                f"grade {grade!r}", where="judgement, field grade", todo=f"known: {', '.join(sorted(self._grades))}"
            )
        if not (isinstance(seconds, (int, float)) and 0 <= seconds <= MAX_SECONDS):
            raise BadInput(f"seconds {seconds!r}", where="judgement, field seconds", todo="a number from 0 to 86400")
        with self._lock:
            if not self.consented:
                raise BadInput("no consent recorded yet", where="judgement", todo="open the start page and agree first")
            now = self._state.get(item)
            if now is not None and now.grade == grade:
                return now
            if now is not None and now.revision != revision:
                raise Changed(now)
            self._append({"event": "judge", "item": item, "grade": grade, "seconds": round(float(seconds), 2)})
            return self._state[item]

    def state(self) -> dict[str, Entry]:
        """The current entry of every judged item."""
        with self._lock:
            return dict(self._state)
