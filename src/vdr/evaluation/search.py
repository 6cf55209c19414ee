"""Exact MaxSim search over encoded pages: every query against every page, no index, no approximation.

s(q, d) = Σ_i max_j ⟨q_i, d_j⟩ (WT §3), accumulated in fp32 or better whatever the storage; ranked by the package's
tie rule (:data:`vdr.evaluation.run_files.TIE_RULE`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vdr.errors import BadInput
from vdr.evaluation.run_files import Run
from vdr.kernels.maxsim import maxsim_search
from vdr.models.vectors import VectorSet

__all__ = ["SearchResult", "rank_scores", "search"]


@dataclass(frozen=True)
class SearchResult:
    """A run and its ties. `ties`: hits whose score equals the hit before them; `cut_in_tie`: queries whose last kept
    hit has the score of a page that the depth left out."""

    run: Run
    ties: int
    cut_in_tie: int


def rank_scores(scores: np.ndarray, depth: int) -> tuple[np.ndarray, bool]:
    """Columns of the `depth` best of `scores` [P], best first, equal scores in column order, and whether the cut falls
    within a tie. -inf (a page without vectors) is no hit. Give the columns in ascending page id for the tie rule.

    Raises BadInput on NaN or +inf.
    """
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise BadInput("a score is NaN or infinite", todo="look at the vectors' checkpoint")
    hits = np.flatnonzero(scores > -np.inf)
    kept = hits
    if len(hits) > depth:
        # Everything at or above the depth-th best score: ties at the cut stay in until ids have decided.
        threshold = np.partition(scores[hits], len(hits) - depth)[len(hits) - depth]
        kept = hits[scores[hits] >= threshold]
    order = kept[np.argsort(-scores[kept], kind="stable")]
    return order[:depth], len(order) > depth and bool(scores[order[depth - 1]] == scores[order[depth]])


def _blocks(offsets: np.ndarray, per_block: int) -> Iterator[tuple[int, int]]:
    # Consecutive items of at most `per_block` vectors together (one item at least).
    start, n = 0, len(offsets) - 1
    while start < n:
        stop = int(np.searchsorted(offsets, offsets[start] + per_block, side="right")) - 1
        stop = min(max(stop, start + 1), n)
        yield start, stop
        start = stop


def search(
    queries: VectorSet,
    pages: VectorSet,
    *,
    depth: int,
    tag: str = "vdr",
    query_vectors_per_block: int = 4096,
) -> SearchResult:
    """Rank all pages for every query and keep the `depth` best (all of them when the corpus is smaller).

    Queries are taken in blocks of `query_vectors_per_block` vectors so that the score matrix stays small; the result
    does not depend on the blocks. Raises BadInput when pages or queries are empty, widths differ, or a score is not
    finite.
    """
    if depth < 1:
        raise BadInput(f"depth must be at least 1, not {depth}", where="evaluation.depth")
    if not len(pages):
        raise BadInput("there are no pages to search", todo="check the suite")
    if not len(queries):
        raise BadInput("there are no queries to search with", todo="check the suite")
    if pages.width != queries.width:
        raise BadInput(f"pages are {pages.width} wide, queries {queries.width}", todo="encode both with one checkpoint")
    columns = np.array(sorted(range(len(pages)), key=pages.ids.__getitem__))
    rankings: dict[str, list[tuple[str, float]]] = {}
    ties = cut_in_tie = 0
    for start, stop in _blocks(queries.offsets, query_vectors_per_block):
        low, high = queries.offsets[start], queries.offsets[stop]
        block = maxsim_search(
            queries.vectors[low:high], queries.offsets[start : stop + 1] - low, pages.vectors, pages.offsets
        )
        for row, query in zip(np.asarray(block), queries.ids[start:stop], strict=True):
            row = row[columns]
            try:
                order, in_tie = rank_scores(row, depth)
            except BadInput as error:
                raise BadInput(error.what, where=f"query {query!r}", todo=error.todo) from None
            rankings[query] = [(pages.ids[columns[j]], float(row[j])) for j in order]
            ties += int((row[order[1:]] == row[order[:-1]]).sum())
            cut_in_tie += in_tie
    return SearchResult(Run(tag, rankings), ties, cut_in_tie)
