"""nDCG@k as WT reports it (WT §3, Appendix D), with the agreement check against pytrec_eval.

Gains are the grades themselves (`linear`), as in trec_eval's `ndcg_cut` and the ViDoRe evaluator that WT
reimplements; EV's 2^g − 1 form (`exponential`) is offered beside it. DCG = Σ_{r≤k} gain_r / log2(r + 1); the ideal is
taken over all judged pages of the query. Grades below zero gain nothing. A query without hits counts 0 (`trec_eval
-c`). Scores are × 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pytrec_eval

from vdr.errors import BadInput
from vdr.evaluation.run_files import Run

__all__ = [
    "Gain",
    "agreement_with_pytrec_eval",
    "check_qrels",
    "mean_over_queries",
    "ndcg",
    "ndcg_per_query",
    "tie_bounds",
]

Gain = Literal["linear", "exponential"]
Qrels = Mapping[str, Mapping[str, int]]


def _gains(grades: Sequence[int], gain: Gain) -> np.ndarray:
    values = np.maximum(np.asarray(grades, dtype=np.float64), 0.0)
    if gain == "linear":
        return values
    if gain == "exponential":
        return np.exp2(values) - 1.0
    raise BadInput(f"unknown gain {gain!r}", where="evaluation.gain", todo="use linear or exponential")


def _dcg(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], k: int, gain: Gain = "linear") -> float:
    """nDCG@k in [0, 1] of one query: `ranked` page ids best first, `grades` the judged pages (the rest count 0).

    Raises BadInput when no judged page is relevant, for then the ideal is 0 and nothing is measured.
    """
    ideal = _dcg(np.sort(_gains(list(grades.values()), gain))[::-1][:k])
    if ideal == 0.0:
        raise BadInput("no page is judged relevant", todo="drop the query or complete its qrels")
    return _dcg(_gains([grades.get(page, 0) for page in ranked[:k]], gain)) / ideal


def check_qrels(qrels: Qrels, queries: Sequence[str], pages: Sequence[str] | None, where: str) -> None:
    """Raise BadInput on an empty suite, a query without qrels or without a relevant page, and judgements of unknown
    queries or (where `pages` is given) unknown pages. Evaluators in C return NaN for some of these."""
    if not queries:
        raise BadInput("the suite has no queries", where=where, todo="check the suite's files")
    unjudged = sorted(query for query in queries if not any(grade > 0 for grade in qrels.get(query, {}).values()))
    if unjudged:
        what = f"{len(unjudged)} of {len(queries)} queries have no relevant page in the qrels, e.g. {unjudged[0]!r}"
        raise BadInput(what, where=where, todo="drop them from the queries or complete the qrels")
    strangers = sorted(set(qrels) - set(queries))
    if strangers:
        raise BadInput(f"qrels judge {len(strangers)} unknown queries, e.g. {strangers[0]!r}", where=where)
    if pages is not None:
        known = set(pages)
        if len(known) != len(pages):
            raise BadInput("page ids occur more than once", where=where, todo="make page ids unique")
        lost = sorted({page for judged in qrels.values() for page in judged} - known)
        if lost:
            raise BadInput(f"qrels judge {len(lost)} pages outside the corpus, e.g. {lost[0]!r}", where=where)


def ndcg_per_query(run: Run, qrels: Qrels, k: int, gain: Gain = "linear") -> dict[str, float]:
    """nDCG@k in [0, 1] of every query in `qrels`, ascending ids; a query that the run does not hold scores 0."""
    scores = {}
    for query in sorted(qrels):
        hits = run.rankings.get(query, [])
        try:
            scores[query] = ndcg([page for page, _ in hits], qrels[query], k, gain)
        except BadInput as error:
            raise BadInput(error.what, where=f"query {query!r}", todo=error.todo) from None
    return scores


def mean_over_queries(scores: Mapping[str, float]) -> float:
    """Mean × 100 over all queries, summed in id order (the same bits for the same scores)."""
    if not scores:
        raise BadInput("there are no queries to average over", todo="check the suite")
    return 100.0 * float(np.mean([scores[query] for query in sorted(scores)], dtype=np.float64))


def tie_bounds(run: Run, qrels: Qrels, k: int, gain: Gain = "linear") -> tuple[float, float, int]:
    """(lowest, highest) mean nDCG@k × 100 that any order of equally scored hits could give, and the number of queries
    for which the order matters. Hits that the run's depth cut off are not considered."""
    low, high, touched = {}, {}, 0
    for query in sorted(qrels):
        grades = qrels[query]
        hits = run.rankings.get(query, [])
        worst = [page for page, _ in sorted(hits, key=lambda hit: (-hit[1], grades.get(hit[0], 0)))]
        best = [page for page, _ in sorted(hits, key=lambda hit: (-hit[1], -grades.get(hit[0], 0)))]
        low[query], high[query] = ndcg(worst, grades, k, gain), ndcg(best, grades, k, gain)
        touched += low[query] != high[query]
    return mean_over_queries(low), mean_over_queries(high), touched


def agreement_with_pytrec_eval(run: Run, qrels: Qrels, k: int) -> float:
    """Largest |difference| over queries between this module's linear nDCG@k and pytrec_eval's `ndcg_cut_k`, in [0, 1].

    pytrec_eval sorts by score and then by *descending* id; it is given each hit's rank as its score, so that it
    measures this ranking and not another order of tied pages.
    """
    ours = ndcg_per_query(run, qrels, k, "linear")
    ranked = {
        query: {page: float(len(hits) - rank) for rank, (page, _) in enumerate(hits)}
        for query, hits in run.rankings.items()
        if hits
    }
    evaluator = pytrec_eval.RelevanceEvaluator(
        {query: dict(judged) for query, judged in qrels.items()}, {f"ndcg_cut.{k}"}
    )
    theirs = evaluator.evaluate(ranked)
    return max(abs(ours[q] - (theirs[q][f"ndcg_cut_{k}"] if q in theirs else 0.0)) for q in ours)
