"""TREC run files: `query Q0 page rank score tag`, one line a hit, read as strictly as they are written.

Tie rule of the whole package: score descending, then page id ascending (string comparison by code point). A file
holds the true fp32 scores, ties included; tools that sort a run file again by another rule (trec_eval: page id
descending) may order tied pages otherwise, so ties are counted wherever scores are reported.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vdr.errors import BadInput, DamagedArtefact
from vdr.textfiles import packed, unpacked

__all__ = ["TIE_RULE", "Run", "read_run", "run_file_bytes", "write_run"]

AGAIN = "run the evaluation again"
TIE_RULE = "score descending, then page id ascending (string comparison)"
_NAME = re.compile(r"\S+")


@dataclass(frozen=True)
class Run:
    """Ranked pages per query: `rankings[query_id] = [(page_id, score), …]`, best first, by the tie rule."""

    tag: str
    rankings: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    @property
    def lines(self) -> int:
        """Number of hits over all queries."""
        return sum(len(hits) for hits in self.rankings.values())

    def cut(self, depth: int) -> Run:
        """The same run with at most `depth` hits a query."""
        return Run(self.tag, {query: hits[:depth] for query, hits in self.rankings.items()})

    def check(self, where: str | Path) -> None:
        """Raise BadInput on names with white space, duplicate pages, non-finite scores or hits out of order."""
        if not _NAME.fullmatch(self.tag):
            raise BadInput(f"run tag {self.tag!r} must be one word", where=where)
        for query, hits in self.rankings.items():
            _check_name(query, "query id", where)
            seen: set[str] = set()
            for rank, (page, score) in enumerate(hits, 1):
                _check_name(page, "page id", where)
                if page in seen:
                    raise BadInput(
                        f"query {query!r} ranks page {page!r} twice", where=where, todo="make page ids unique"
                    )
                seen.add(page)
                if not math.isfinite(score):
                    raise BadInput(f"query {query!r}, page {page!r}: score {score} is not finite", where=where)
                if rank > 1 and not _in_order(hits[rank - 2], (page, score)):
                    raise BadInput(f"query {query!r}: rank {rank} is out of order ({TIE_RULE})", where=where)


def _check_name(name: str, kind: str, where: str | Path) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{kind} {name!r} is empty or holds white space, which a run file cannot carry", where=where)


def _in_order(before: tuple[str, float], after: tuple[str, float]) -> bool:
    return before[1] > after[1] or (before[1] == after[1] and before[0] < after[0])


def _number(score: float) -> str:
    # Shortest text that gives back the same fp32 number.
    return np.format_float_positional(np.float32(score), unique=True, trim="0")


def run_file_bytes(run: Run) -> bytes:
    """The text of a run file (UTF-8); queries in ascending id order, so that the same run gives the same bytes."""
    out = io.StringIO()
    for query in sorted(run.rankings):
        for rank, (page, score) in enumerate(run.rankings[query], 1):
            out.write(f"{query} Q0 {page} {rank} {_number(score)} {run.tag}\n")
    return out.getvalue().encode("utf-8")


def write_run(path: Path, run: Run) -> dict[str, object]:
    """Check and write a run file (gzip when the name ends in `.gz`); returns {"sha256", "lines"} of the text."""
    path = Path(path)
    run.check(path)
    data = run_file_bytes(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(path, data))
    return {"sha256": hashlib.sha256(data).hexdigest(), "lines": run.lines}


def read_run(path: Path, *, sha256: str | None = None) -> Run:
    """Read a run file, plain or gzip. `sha256` (of the text) is compared when given.

    Raises BadInput when the file is missing, DamagedArtefact when it is truncated, malformed, out of order, holds a
    page twice or does not match the hash; the line is named.
    """
    path = Path(path)
    text = unpacked(path, AGAIN)
    if sha256 is not None and hashlib.sha256(text.encode("utf-8")).hexdigest() != sha256:
        raise DamagedArtefact("content does not match its recorded hash", where=path, todo=AGAIN)
    if text and not text.endswith("\n"):
        raise DamagedArtefact("last line is cut off", where=path, todo=AGAIN)
    rankings: dict[str, list[tuple[str, float]]] = {}
    tags: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        try:
            query, q0, page, rank, score, tag = parts
            hit = (page, float(np.float32(score)))
            good = q0 == "Q0" and int(rank) == len(rankings.setdefault(query, [])) + 1
        except ValueError:
            good = False
        if not good or not math.isfinite(hit[1]):
            what = (
                f"line {number} is not 'query Q0 page rank score tag' with finite score and rising rank: {line[:80]!r}"
            )
            raise DamagedArtefact(what, where=path, todo=AGAIN)
        rankings[query].append(hit)
        tags.add(tag)
    run = Run(tags.pop() if len(tags) == 1 else "mixed" if tags else "empty", rankings)
    try:
        run.check(path)
    except BadInput as error:
        raise DamagedArtefact(error.what, where=path, todo=AGAIN) from error
    return run
