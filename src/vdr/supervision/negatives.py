"""Which mined candidates a row trains against: N, and the teacher-free rules that it is compared with (WT §3, §5).

Every rule chooses among the row's scored candidates (ranks 1–20 and one per ten ranks to 100), so that what a rule
admits can be judged by the teacher's ratings whether or not the rule reads them. None can choose the row's own
labelled page, which has no rank; pages that other rows with the same query string are labelled with are candidates
like any other, as in the paper (§5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vdr.errors import BadInput
from vdr.supervision.rowpools import RowPool

__all__ = ["Selection", "by_ranks", "by_score", "by_teacher", "matched_alpha", "rejection_rate", "select_negatives"]


@dataclass(frozen=True)
class Selection:
    """chosen: positions in the row's pool, in the order of choice; filled: how many of them (the last) the rule did
    not want."""

    chosen: list[int]
    filled: int = 0


def by_teacher(pool: RowPool, count: int = 4, below: float = 0.5, backfill: bool = True) -> Selection:
    """N (§3): the highest-ranked candidates rated below the cut; a gap is filled with the lowest-rated ones that
    remain.

    Candidates without a rating are dropped. Equal ratings are filled in rank order. Without `backfill` a gap stays.
    """
    wanted = np.flatnonzero(pool.rated & (pool.ratings < below))[:count].tolist()
    if len(wanted) == count or not backfill:
        return Selection(wanted)
    rest = np.flatnonzero(pool.rated & (pool.ratings >= below))
    fill = rest[np.argsort(pool.ratings[rest], kind="stable")][: count - len(wanted)].tolist()
    return Selection(wanted + fill, len(fill))


def by_ranks(pool: RowPool, first: int, last: int, count: int = 4) -> Selection:
    """Candidates evenly spaced over the ranks `first` to `last` (§5): of the scored ones, those nearest to the even
    ranks.

    The even ranks are `count` points from first to last, both included; of two candidates equally near, the
    higher-ranked is taken, and none twice. A window with too few scored candidates (a short pool) is filled with
    the nearest outside it.
    """
    chosen: list[int] = []
    inside = [int(i) for i in np.flatnonzero((pool.ranks >= first) & (pool.ranks <= last))]
    for target in np.linspace(first, last, count):
        free = [i for i in inside if i not in chosen]
        if free:
            chosen.append(min(free, key=lambda i: (abs(pool.ranks[i] - target), pool.ranks[i])))
    chosen.sort()
    outside = [i for i in range(len(pool.pages)) if i not in inside]
    outside.sort(key=lambda i: (max(first - pool.ranks[i], pool.ranks[i] - last), pool.ranks[i]))
    fill = outside[: count - len(chosen)]
    return Selection(chosen + fill, len(fill))


def by_score(pool: RowPool, alpha: float, count: int = 4) -> Selection:
    """TopK-PercPos (§5): the highest-ranked candidates whose miner score is below alpha times the labelled page's.

    A gap is filled with the remaining candidates of the lowest miner score, the lowest first.
    """
    kept = pool.scores < alpha * pool.labelled_score
    wanted = np.flatnonzero(kept)[:count].tolist()
    rest = np.flatnonzero(~kept)[::-1]
    fill = rest[np.argsort(pool.scores[rest], kind="stable")][: count - len(wanted)].tolist()
    return Selection(wanted + fill, len(fill))


def rejection_rate(pools: Iterable[RowPool], below: float = 0.5) -> float:
    """Share of the rated candidates that N's rule rejects, over rows whose labelled page the miner found (§5: 41.9
    %)."""
    rated = [pool.ratings[pool.rated] for pool in pools if pool.labelled_mined]
    values = np.concatenate(rated) if rated else np.empty(0)
    if not len(values):
        raise BadInput(
            "no rated candidates on rows whose labelled page was mined", where="ratings", todo="rate the scored pool"
        )
    return float((values >= below).mean())


def matched_alpha(pools: Iterable[RowPool], below: float = 0.5) -> tuple[float, dict[str, float]]:
    """The alpha at which TopK-PercPos rejects as many of the same candidates as N's rule does, and how close it
    comes.

    Both rates are over the rated candidates of rows whose labelled page the miner found, so that they share a
    denominator (§5). The rule rejects a candidate when score >= alpha * labelled score, so alpha is a quantile of
    the ratio of the two; a row with a labelled score of 0 or less has no such ratio and is left out of the solving
    (counted). Returns alpha and {target_rate, rate, rows_left_out}.
    """
    pools = [pool for pool in pools if pool.labelled_mined]
    target = rejection_rate(pools, below)
    usable = [pool for pool in pools if pool.labelled_score > 0]
    if not usable:
        raise BadInput(
            "no labelled page has a positive miner score", where="pools.labelled_score", todo="use another miner score"
        )
    ratios = np.sort(np.concatenate([pool.scores[pool.rated] / pool.labelled_score for pool in usable]))[::-1]
    rejected = round(target * len(ratios))
    if rejected == 0:
        alpha = float(np.nextafter(ratios[0], np.inf))
    elif rejected == len(ratios):
        alpha = float(ratios[-1])
    else:
        alpha = float((ratios[rejected - 1] + ratios[rejected]) / 2)
    rate = float((ratios >= alpha).mean())
    return alpha, {"target_rate": target, "rate": rate, "rows_left_out": float(len(pools) - len(usable))}


def select_negatives(
    rule: Any, pools: dict[int, RowPool], match: Any = None
) -> tuple[dict[int, Selection], dict[str, Any]]:
    """Apply an arm's `negatives` entry to every row; returns selections by row_id, and what the rule was set to.

    match: the entry of the arm whose rejection rate `perc_matched` takes over. Raises BadInput for an unknown rule.
    """
    note: dict[str, Any] = {"rule": rule.rule}
    choose: Callable[[RowPool], Selection]
    if rule.rule == "teacher":

        def choose(pool: RowPool) -> Selection:
            return by_teacher(pool, rule.count, rule.below, rule.backfill != "none")
    elif rule.rule == "ranks":

        def choose(pool: RowPool) -> Selection:
            return by_ranks(pool, rule.first, rule.last, rule.count)
    elif rule.rule in ("perc", "perc_matched"):
        if rule.rule == "perc":
            alpha = rule.alpha
        else:
            if match is None or match.rule != "teacher":
                raise BadInput("a matched threshold needs a teacher-judged arm", where="negatives.match", todo="name N")
            alpha, note["matched"] = matched_alpha(pools.values(), match.below)
        note["alpha"] = alpha

        def choose(pool: RowPool) -> Selection:
            return by_score(pool, alpha, rule.count)
    else:
        raise BadInput(
            f"unknown rule {rule.rule!r}", where="negatives.rule", todo="known: teacher, ranks, perc, perc_matched"
        )
    return {row_id: choose(pool) for row_id, pool in pools.items()}, note
