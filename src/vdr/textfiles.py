"""Text files and numbers, read in one place and strictly: what cannot be read is one line that names it."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from vdr.errors import BadInput, DamagedArtefact

__all__ = ["measured_table", "packed", "real_number", "text_of", "text_table", "unpacked", "whole_number"]

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_REAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)


def text_of(path: Path, what: str = "file") -> str:
    """The text of a UTF-8 file. Raises `BadInput` naming the path when it is missing, a folder, unreadable, not UTF-8 or not
    text."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadInput(f"no such {what}", where=path) from None
    except IsADirectoryError:
        raise BadInput(f"this is a folder, a {what} is needed", where=path) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8 text (byte {error.start})", where=path, todo="save it as UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise BadInput(f"cannot be read ({getattr(error, 'strerror', None) or error})", where=path) from None
    if "\0" in text:
        raise BadInput(f"not text: a null byte in line {text[: text.index(chr(0))].count(chr(10)) + 1}", where=path)
    return text


def text_table(path: Path, columns: Sequence[str], *, what: str = "CSV file") -> pd.DataFrame:
    """A CSV file with a header as text, cell by cell: `NA`, `null` and `007` stay what they are, blank is "".

    Raises `BadInput` naming file and line or column: what `text_of` refuses, a line with more or fewer cells than the
    header, a quote that is never closed, a missing or repeated column.
    """
    text = text_of(path, what)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, line) for line in reader if line]
    except csv.Error as error:
        raise BadInput(f"not a {what} ({error})", where=path) from None
    if not lines:
        raise BadInput(f"an empty {what}", where=path, todo=f"columns: {', '.join(columns)}")
    header = [name.strip() for name in lines[0][1]]
    for name in header:
        if header.count(name) > 1:
            raise BadInput(f"column {name!r} stands twice", where=path)
    for name in columns:
        if name not in header:
            raise BadInput(f"no column {name!r}", where=path, todo=f"columns: {', '.join(columns)}")
    for number, line in lines[1:]:
        if len(line) != len(header):
            raise BadInput(f"line {number} has {len(line)} cells, the header has {len(header)}", where=path)
    return pd.DataFrame([line for _, line in lines[1:]], columns=header, dtype=object)


def measured_table(path: Path) -> pd.DataFrame:
    """A CSV file of figures that this package wrote: only a blank cell is missing, so that `NA` and `null` stay names."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def packed(path: Path, data: bytes) -> bytes:
    """`data` as it is stored under this name: gzip where it ends in `.gz`; the same data gives the same bytes."""
    return gzip.compress(data, compresslevel=9, mtime=0) if path.suffix == ".gz" else data


def unpacked(path: Path, todo: str) -> str:
    """The text of a file of this package's own, plain or gzip. BadInput when it is missing, DamagedArtefact when it cannot
    be read; `todo` says how it is made again."""
    try:
        raw = Path(path).read_bytes()
        return (gzip.decompress(raw) if Path(path).suffix == ".gz" else raw).decode("utf-8")
    except FileNotFoundError:
        raise BadInput("file is missing", where=path, todo=todo) from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DamagedArtefact(f"cannot be read ({error})", where=path, todo=todo) from error


def whole_number(text: str) -> int | None:
    """A whole number in ASCII digits, or None: neither `--5` nor `²` is one, nor are `1_000` and `1.0`."""
    return int(text) if _WHOLE.fullmatch(text) else None


def real_number(text: str) -> float | None:
    """A finite number in ASCII digits, or None: `nan`, `inf` and `1_0` are none."""
    value = float(text) if _REAL.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None
