"""Judgements as TSV files: the one reader and the one writer, for corpora and for records.

Cells are raw: nothing is quoted, and nothing means "missing".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vdr.errors import BadInput, DamagedArtefact
from vdr.textfiles import packed, unpacked, whole_number

__all__ = ["read_qrels", "write_qrels"]

AGAIN = "make it again"
_NAME = re.compile(r"\S+")


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Write `query_id<TAB>page_id<TAB>grade` with a header line, sorted (gzip when the name ends in `.gz`).

    Raises BadInput for an id that is empty or holds white space; every other id, `NA` and `"a` among them, is itself.
    """
    path = Path(path)
    for name in sorted({*qrels, *(page for pages in qrels.values() for page in pages)}):
        if not _NAME.fullmatch(name):
            raise BadInput(f"id {name!r} is empty or holds white space, which qrels cannot carry", where=path)
    lines = ["query_id\tpage_id\tgrade\n"]
    for query in sorted(qrels):
        lines += [f"{query}\t{page}\t{int(qrels[query][page])}\n" for page in sorted(qrels[query])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(path, "".join(lines).encode("utf-8")))


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read what `write_qrels` writes; DamagedArtefact names the line that is malformed or given twice."""
    path = Path(path)
    qrels: dict[str, dict[str, int]] = {}
    lines = unpacked(path, AGAIN).removesuffix("\n").split("\n")
    if not lines or lines[0].split("\t") != ["query_id", "page_id", "grade"]:
        raise DamagedArtefact("header 'query_id page_id grade' is missing", where=path)
    for number, line in enumerate(lines[1:], 2):
        try:
            query, page, grade = line.split("\t")
            value = whole_number(grade)
        except ValueError:
            value = None
        if value is None:
            raise DamagedArtefact(f"line {number} is malformed: {line[:80]!r}", where=path)
        pages = qrels.setdefault(query, {})
        if page in pages:
            raise DamagedArtefact(f"line {number}: query {query!r} judges page {page!r} twice", where=path)
        pages[page] = value
    return qrels
