"""Progress with an estimate of the time left: a bar on a terminal, plain lines in a log, a small file for a parent process.

`track` takes an iterable, or a total to be counted up by hand. Where `VDR_PROGRESS_FILE` is set (a parent that runs several
children sets it), nothing is printed and the file says how far this process is; the parent adds the children up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Generic, TypeVar, overload

__all__ = ["PROGRESS_FILE", "Progress", "clock", "note", "read_progress_file", "track"]

T = TypeVar("T")

PLAIN_SECONDS = 10.0
BAR_SECONDS = 0.2
PROGRESS_FILE = "VDR_PROGRESS_FILE"


def clock(seconds: float | None) -> str:
    """Seconds as a person reads them: `42 s`, `3:07`, `1:02:30`; `?` for None.

    >>> clock(187), clock(42.4), clock(3750)
    ('3:07', '42 s', '1:02:30')
    """
    if seconds is None or seconds != seconds or seconds < 0:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def _rate(per_second: float, unit: str) -> str:
    if per_second >= 1 or per_second == 0:
        return f"{per_second:,.1f} {unit}/s"
    return f"{1 / per_second:,.2f} s/{unit}"


class Progress(Generic[T]):
    """One task's progress; use it as an iterable, or as a context manager with `update`.

    `total` may be None when it is not known. `suffix` (for example a loss) is shown at the end of the line.
    `start_at` counts work that an earlier attempt did: it enters the position, not the rate.
    """

    def __init__(
        self,
        items: Iterable[T] | None,
        total: int | None,
        label: str,
        unit: str = "item",
        *,
        stream: IO[str] | None = None,
        start_at: int = 0,
    ) -> None:
        self.items = items
        self.total = total
        self.label = label
        self.unit = unit
        self.done = start_at
        self.suffix = ""
        self._start_at = start_at
        self._stream = sys.stderr if stream is None else stream
        self._tty = bool(getattr(self._stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"
        target = os.environ.get(PROGRESS_FILE)
        self._file = Path(target) if target and stream is None else None
        self._started = time.monotonic()
        self._shown = self._started
        self._closed = False
        self._plain_lines = 0

    # -- counting ------------------------------------------------------------------------------------------------------
    def update(self, n: int = 1, suffix: str | None = None) -> None:
        """Count `n` more units; show them when it is time."""
        self.done += n
        if suffix is not None:
            self.suffix = suffix
        self._maybe_show()

    def set(self, done: int, suffix: str | None = None) -> None:
        """Set the position itself."""
        self.update(done - self.done, suffix)

    def _maybe_show(self, force: bool = False) -> None:
        now = time.monotonic()
        pause = BAR_SECONDS if (self._tty or self._file is not None) else PLAIN_SECONDS
        if not force and now - self._shown < pause:
            return
        self._shown = now
        if self._file is not None:
            self._write_file()
        elif self._tty:
            self._stream.write("\r\x1b[2K" + self.line(bar=True))
            self._stream.flush()
        else:
            self._plain_lines += 1
            self._stream.write(self.line() + "\n")
            self._stream.flush()

    # -- what is said --------------------------------------------------------------------------------------------------
    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def rate(self) -> float:
        """Units per second in this process (earlier attempts left out)."""
        return (self.done - self._start_at) / max(self.elapsed, 1e-9)

    @property
    def eta(self) -> float | None:
        """Seconds left, or None while nothing can be said."""
        if self.total is None or self.done <= self._start_at:
            return None
        return max(self.total - self.done, 0) / self.rate

    def line(self, bar: bool = False) -> str:
        """The text of one report."""
        parts = [self.label]
        if self.total is None:
            parts.append(f"{self.done:,} {self.unit}")
        else:
            share = min(self.done / self.total, 1.0) if self.total else 1.0
            if bar:
                filled = int(share * 24)
                parts.append("[" + "#" * filled + "." * (24 - filled) + "]")
            parts.append(f"{self.done:,}/{self.total:,} {self.unit} ({share:4.0%})")
        parts.append(_rate(self.rate, self.unit))
        if self.total is not None and self.done < self.total:
            parts.append(f"ETA {clock(self.eta)}")
        else:
            parts.append(f"in {clock(self.elapsed)}")
        if self.suffix:
            parts.append(self.suffix)
        return "  ".join(parts)

    def _write_file(self) -> None:
        assert self._file is not None
        state = {
            "label": self.label,
            "unit": self.unit,
            "done": self.done,
            "total": self.total,
            "start_at": self._start_at,
            "elapsed": round(self.elapsed, 3),
            "suffix": self.suffix,
        }
        beside = self._file.with_name(self._file.name + ".new")
        try:
            beside.write_text(json.dumps(state), encoding="utf-8")
            os.replace(beside, self._file)
        except OSError:
            # Progress is a courtesy: a full disk is reported by whoever writes results, not from here.
            self._file = None

    # -- ends ----------------------------------------------------------------------------------------------------------
    def close(self, failed: bool = False) -> None:
        """Show the last state once (in a log only when the task took long enough to be worth a line)."""
        if self._closed:
            return
        self._closed = True
        if self._file is not None:
            self._write_file()
        elif self._tty:
            self._stream.write("\r\x1b[2K" + self.line(bar=True) + "\n")
            self._stream.flush()
        elif not failed and (self._plain_lines or self.elapsed >= 1.0):
            self._stream.write(self.line() + "\n")
            self._stream.flush()

    def __enter__(self) -> Progress[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    def __iter__(self) -> Iterator[T]:
        if self.items is None:
            raise TypeError("this progress counts by hand: use it as a context manager and call update()")
        finished = False
        try:
            for item in self.items:
                yield item
                self.update(1)
            finished = True
        finally:
            self.close(failed=not finished)


@overload
def track(
    what: int | None,
    label: str,
    unit: str = ...,
    *,
    total: int | None = ...,
    start_at: int = ...,
    stream: IO[str] | None = ...,
) -> Progress[Any]: ...


@overload
def track(
    what: Iterable[T],
    label: str,
    unit: str = ...,
    *,
    total: int | None = ...,
    start_at: int = ...,
    stream: IO[str] | None = ...,
) -> Progress[T]: ...


def track(
    what: Iterable[T] | int | None,
    label: str,
    unit: str = "item",
    *,
    total: int | None = None,
    start_at: int = 0,
    stream: IO[str] | None = None,
) -> Progress[Any]:
    """Follow an iterable (`for page in track(pages, "encode", "page")`) or a count
    (`with track(300, "train", "step") as bar: bar.update(1, suffix="loss 0.2")`)."""
    if what is None or isinstance(what, int):
        return Progress(None, what if total is None else total, label, unit, stream=stream, start_at=start_at)
    if total is None and isinstance(what, Sized):
        total = len(what)
    return Progress(what, total, label, unit, stream=stream, start_at=start_at)


def note(text: str, *, stream: IO[str] | None = None) -> None:
    """One plain line of news on stderr (so that stdout stays for results)."""
    out = sys.stderr if stream is None else stream
    out.write(text.rstrip("\n") + "\n")
    out.flush()


def read_progress_file(path: Path) -> dict[str, object] | None:
    """What a child said last, or None when it has said nothing yet."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None
