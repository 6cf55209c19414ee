"""S: which candidates a row distils, and the targets over them (WT §3, §7, App. A).

The candidates are drawn one from each quarter of the scored pool in the miner's order. The pool is what the teacher
rated: unparseable candidates are dropped before it is cut, so that four remain where four were rated; a row with
fewer distils fewer. The labelled page stands in the pool at the place its miner score gives it, where the miner
found it (the default). The paper's labelled page is among the four for 12.1 % of queries; in a pool of 29 a page
drawn from one of four parts has a chance of at least 1/8, so the paper's pool cannot have held it for every query,
and a miner that misses the labelled page for a few per cent gives that figure.

Targets are raw ratings; the softmax and its temperature belong to the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vdr.errors import BadInput
from vdr.mining.draws import draw
from vdr.supervision.rowpools import RowPool

__all__ = ["Distilled", "distil", "draw_candidates", "target_entropy", "target_shape"]


@dataclass(frozen=True)
class Distilled:
    """pages: up to `count` page ids; ratings: what the teacher gave them; targets: what the loss gets; weight: 1,
    or 0 for no loss."""

    pages: list[str]
    ratings: list[float]
    targets: list[float]
    weight: float


def draw_candidates(pool: RowPool, count: int, seed: int, labelled: str = "retrieved") -> tuple[list[str], list[float]]:
    """One rated candidate from each of `count` parts of the row's pool; their page ids and ratings.

    The parts are as equal as they can be, the first ones larger (29 in four parts: 8, 7, 7, 7). The draw is uniform
    inside a part and fixed by seed, row and part. labelled: `retrieved` or `always`, when the labelled page belongs
    to the pool.
    """
    entries = [(-float(s), page, float(r)) for s, page, r in zip(pool.scores, pool.pages, pool.ratings, strict=True)]
    if pool.labelled_mined or labelled == "always":
        entries.append((-pool.labelled_score, pool.labelled, pool.labelled_rating))
    rated = [entry for entry in entries if not np.isnan(entry[2])]
    entries = sorted(rated)
    parts = [part for part in np.array_split(np.arange(len(entries)), count) if len(part)]
    chosen = [int(part[draw(len(part), "distil", seed, pool.row_id, k)]) for k, part in enumerate(parts)]
    return [entries[i][1] for i in chosen], [entries[i][2] for i in chosen]


def distil(
    pool: RowPool, rule: str, count: int = 4, threshold: float = 0.5, seed: int = 0, labelled: str = "retrieved"
) -> Distilled:
    """S's candidates and targets for a row, under one of §7's rules; the candidates are the same under all of them.

    ratings: the ratings. flat: all 0, a uniform target at any temperature. masked: the ratings, but weight 0 where
    they are constant (bitwise, as fp32). partition: 1 on the candidates rated at or above `threshold` and 0
    elsewhere, which at T=0.02 is a mass of 1/|R| on each of them to fp32 (e^-50 elsewhere), and uniform where R is
    empty or holds all. A row without a rated candidate gets no pages and weight 0.
    """
    pages, ratings = draw_candidates(pool, count, seed, labelled)
    weight = 1.0 if pages else 0.0
    if rule in ("ratings", "masked"):
        targets = ratings
        if rule == "masked" and len({np.float32(r) for r in ratings}) <= 1:
            weight = 0.0
    elif rule == "flat":
        targets = [0.0] * len(ratings)
    elif rule == "partition":
        targets = [float(r >= threshold) for r in ratings]
    else:
        raise BadInput(f"unknown rule {rule!r}", where="targets.rule", todo="known: ratings, flat, masked, partition")
    return Distilled(pages, ratings, targets, weight)


def target_entropy(targets: Iterable[Sequence[float]], temperature: float) -> dict[str, float]:
    """Mean entropy (nats) and mean largest probability of softmax(targets / temperature) over rows of two or more
    (Table 5).

    `percent_of_uniform` is the mean entropy over the mean entropy of uniform targets of the same lengths, in per
    cent. Raises BadInput for a temperature that is not positive, or without a row.
    """
    if temperature <= 0:
        raise BadInput(f"temperature must be positive, got {temperature}", where="temperature")
    entropies, tops, uniform = [], [], []
    for row in targets:
        if len(row) < 2:
            continue
        logits = np.asarray(row, dtype=np.float64) / temperature
        p = np.exp(logits - logits.max())
        p /= p.sum()
        entropies.append(-(p * np.log(np.where(p > 0, p, 1.0))).sum())
        tops.append(p.max())
        uniform.append(np.log(len(row)))
    if not entropies:
        raise BadInput("no row has two targets", where="rows.targets", todo="build rows of an arm that distils")
    mean = float(np.mean(entropies))
    return {
        "temperature": temperature,
        "entropy": mean,
        "max_prob": float(np.mean(tops)),
        "percent_of_uniform": 100 * mean / float(np.mean(uniform)),
    }


def target_shape(ratings: Iterable[Sequence[float]], threshold: float = 0.5) -> dict[str, float]:
    """Shares of rows by the shape of their ratings (§7): constant (all 0, all 1, other), and all on one side of the
    threshold.

    A row without a candidate is left out; one with a single candidate is constant.
    """
    rows = [np.asarray(row, dtype=np.float32) for row in ratings if len(row)]
    if not rows:
        raise BadInput("no row has a target", where="rows.targets", todo="build rows of an arm that distils")
    constant = np.array([bool((row == row[0]).all()) for row in rows])
    zero = np.array([bool((row == 0).all()) for row in rows])
    one = np.array([bool((row == 1).all()) for row in rows])
    side = np.array([bool((row >= threshold).all() or (row < threshold).all()) for row in rows])
    return {
        "rows": float(len(rows)),
        "constant_share": float(constant.mean()),
        "all_zero_share": float(zero.mean()),
        "all_one_share": float(one.mean()),
        "other_constant_share": float((constant & ~zero & ~one).mean()),
        "one_side_share": float(side.mean()),
        "weight_left_by_masking": float(1 - constant.mean()),
    }
