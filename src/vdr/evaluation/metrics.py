"""EV's metrics: nDCG, Recall, MAP and MRR at 1, 5 and 10 (EV App. A), per task, per suite, Avg4; × 100.

* A page is relevant when its grade is above 0. nDCG keeps the grades, with gain 2^g − 1 and discount log2(rank + 1); the
  ideal order is taken over all judged pages.
* Recall@k = relevant pages in the first k / relevant pages. MRR@k = 1 / rank of the first relevant page within k, else 0.
* MAP@k is divided by min(k, |R|), so that a perfect ranking scores 100 (trec_eval's ``map_cut`` divides by |R|).
* Averages: over a task's queries (a query without hits counts 0), then over a suite's tasks, then over four suites.

Where definitions agree with pytrec_eval's the tests compare them: Recall; nDCG with gains 2^g − 1 handed over as grades;
MRR on runs cut at k; MAP after rescaling. WT's nDCG@5 with linear gains is in :mod:`vdr.evaluation.metrics_wt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vdr.errors import BadInput
from vdr.evaluation.run_files import Run

__all__ = ["CUTOFFS", "METRICS", "TaskScores", "avg4", "macro", "score_task"]

CUTOFFS = (1, 5, 10)
METRICS = ("ndcg", "recall", "map", "mrr")

Qrels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class TaskScores:
    """Per-query values [Q] × 100 by name ("ndcg@10", …), in ascending query id, and their means."""

    queries: list[str]
    values: dict[str, np.ndarray]

    @property
    def means(self) -> dict[str, float]:
        return {name: float(column.mean()) for name, column in self.values.items()}


def score_task(run: Run | Mapping[str, Mapping[str, float]], qrels: Qrels, cutoffs: Sequence[int] = CUTOFFS,
               *, where: str = "") -> TaskScores:
    """Score one task's run: a :class:`~vdr.evaluation.run_files.Run`, or query id → page id → score.

    Scores given by page are ranked by the package's tie rule. Raises BadInput on a query without a relevant page (its nDCG
    is undefined, and trec_eval's C code has read past its end there), on a run that answers unknown queries, ranks a page
    twice or holds NaN, and on cutoffs below 1.
    """
    if not qrels or not cutoffs or min(cutoffs) < 1:
        raise BadInput("metrics need queries and cutoffs of at least 1", where=where)
    depth = max(cutoffs)
    names = sorted(qrels)
    rankings: Mapping[str, Any] = run.rankings if isinstance(run, Run) else run
    strangers = rankings.keys() - qrels.keys()
    if strangers:
        raise BadInput(f"the run answers {len(strangers)} queries without qrels, e.g. {min(strangers)!r}", where=where)
    grades = np.zeros((len(names), depth), dtype=np.float64)
    ideal = np.zeros((len(names), depth), dtype=np.float64)
    relevant = np.zeros(len(names))
    for row, query in enumerate(names):
        judged = qrels[query]
        positive = sorted((g for g in judged.values() if g > 0), reverse=True)
        if not positive:
            raise BadInput(f"query {query!r} has no relevant page", where=where, todo="leave it out of the task")
        relevant[row] = len(positive)
        top = positive[:depth]
        ideal[row, : len(top)] = top
        hits = rankings.get(query)
        if hits:
            pages = _top(hits, depth, query, where)
            grades[row, : len(pages)] = [judged.get(page, 0) for page in pages]
    return TaskScores(names, _metrics(np.maximum(grades, 0), ideal, relevant, cutoffs))


def _top(hits: Any, depth: int, query: str, where: str) -> list[str]:
    if isinstance(hits, Mapping):
        total = sum(hits.values())  # one NaN anywhere makes the sum NaN, and so does +inf with -inf
        if total != total:
            raise BadInput(f"query {query!r} has a score that is NaN", where=where)
        items = list(hits.items())
        if len(hits) > depth:  # only what reaches the depth-th best score, ties included, is sorted by name
            lowest = sorted(hits.values(), reverse=True)[depth - 1]
            items = [item for item in items if item[1] >= lowest]
        return [page for _, page in sorted([(-score, page) for page, score in items])[:depth]]
    if len({page for page, _ in hits}) != len(hits):
        raise BadInput(f"query {query!r} ranks a page twice", where=where)
    return [page for page, _ in hits[:depth]]


def _metrics(grades: np.ndarray, ideal: np.ndarray, relevant: np.ndarray, cutoffs: Sequence[int]) -> dict[str, np.ndarray]:
    ranks = np.arange(1, grades.shape[1] + 1)
    discount = 1.0 / np.log2(ranks + 1)
    dcg = np.cumsum((np.exp2(grades) - 1) * discount, axis=1)
    best = np.cumsum((np.exp2(ideal) - 1) * discount, axis=1)
    hit = grades > 0
    found = np.cumsum(hit, axis=1)
    precision = np.cumsum(hit * found / ranks, axis=1)
    first = np.where(hit.any(1), hit.argmax(1) + 1, np.inf)
    values: dict[str, np.ndarray] = {}
    for k in cutoffs:
        at = k - 1
        values[f"ndcg@{k}"] = 100 * dcg[:, at] / best[:, at]
        values[f"recall@{k}"] = 100 * found[:, at] / relevant
        values[f"map@{k}"] = 100 * precision[:, at] / np.minimum(k, relevant)
        values[f"mrr@{k}"] = np.where(first <= k, 100 / first, 0.0)
    return values


def macro(tasks: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Unweighted mean over a suite's tasks of each metric. Raises BadInput when there is none or their metrics differ."""
    if not tasks or len({tuple(sorted(scores)) for scores in tasks.values()}) != 1:
        raise BadInput("a suite needs tasks that were all scored by the same metrics")
    names = sorted(tasks)
    return {metric: sum(tasks[name][metric] for name in names) / len(names) for metric in tasks[names[0]]}


def avg4(suites: Mapping[str, Mapping[str, float]], metric: str = "ndcg@10") -> float:
    """EV's Avg4: the unweighted mean of four suites' scores. Raises BadInput for any other number of suites."""
    if len(suites) != 4:
        raise BadInput(f"Avg4 is a mean of four suites, got {len(suites)}: {', '.join(sorted(suites))}")
    return sum(float(suites[name][metric]) for name in sorted(suites)) / 4
