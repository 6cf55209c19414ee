"""Which queries and pages are audited, in which blocks, and who grades what in which order (WT App. K; EV App. C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vdr.errors import BadInput

__all__ = ["Sizes", "draw_candidates", "draw_queries", "query_complete", "ring", "separated_order", "show_pages"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a ring study; WT: 50 queries, 20 of them with their labelled page, 4 pages each, 10 annotators.

    Raises `BadInput` where blocks of equal make-up are impossible: uniform blocks are what keeps a block from telling
    anything.
    """

    queries: int = 50
    with_labelled: int = 20
    pages_per_query: int = 4
    annotators: int = 10

    def __post_init__(self) -> None:
        def refuse(what: str, todo: str) -> None:
            raise BadInput(what, where="audit sizes", todo=todo)

        if self.annotators < 3:
            refuse(
                f"{self.annotators} annotators make no ring",
                "take at least 3: with fewer, the pairings are not distinct pairs",
            )
        if self.pages_per_query < 2:
            refuse(
                f"{self.pages_per_query} page a query leaves nothing to mix it with", "show at least 2 pages a query"
            )
        if not 0 <= self.with_labelled <= self.queries:
            refuse(
                f"{self.with_labelled} of {self.queries} queries cannot show their labelled page", "lower with_labelled"
            )
        for name, value in (("queries", self.queries), ("with_labelled", self.with_labelled)):
            if value % self.annotators:
                below = value - value % self.annotators
                refuse(
                    f"{name}={value} does not divide into {self.annotators} equal blocks",
                    f"take {below} or {below + self.annotators}, or another number of annotators",
                )
        if self.queries < self.annotators:
            refuse(
                f"{self.queries} queries cannot fill {self.annotators} blocks",
                f"take at least {self.annotators} queries",
            )


def query_complete(scored: pd.DataFrame, *, top: int, hedge: float = 0.5) -> pd.DataFrame:
    """The query-complete pool: queries whose labelled page and `top` highest-ranked mined candidates all carry a
    rating.

    `scored` has one row per (query_id, page_id) with `rank` (0 = labelled page, 1… = mined position with the labelled
    page left out) and `score` (rating in [0, 1] or NaN). Returns those rows of complete queries with rank ≤ top,
    ordered by query and rank, plus a column `hedge`: whether one of the query's top mined candidates is rated exactly
    `hedge`.
    """
    near = scored[scored["rank"].between(0, top) & scored["score"].notna()]
    near = near.sort_values(["query_id", "rank", "page_id"], kind="stable")
    ranks = near.groupby("query_id")["rank"]
    whole = (ranks.transform("size") == top + 1) & (ranks.transform("nunique") == top + 1)
    complete = near[whole].copy()
    hedged = complete["query_id"][(complete["rank"] > 0) & (complete["score"] == hedge)].unique()
    complete["hedge"] = complete["query_id"].isin(hedged)
    return complete.reset_index(drop=True)


def draw_queries(pool: pd.DataFrame, sizes: Sizes, rng: np.random.Generator) -> pd.DataFrame:
    """Draw the queries, keep the natural rate of hedges, cut them into blocks.

    `pool` is `query_complete`'s answer. The number of hedge-bearing queries is the pool's rate times `sizes.queries`,
    rounded; hedge-bearing queries are dealt over the blocks so that two blocks differ by at most one, and each block
    has the same number of queries that show their labelled page. Returns query_id, hedge, block (0-based),
    shows_labelled. Raises `BadInput` when the pool is too small.
    """
    queries = pool[["query_id", "hedge"]].drop_duplicates("query_id").sort_values("query_id", kind="stable")
    if len(queries) < sizes.queries:
        raise BadInput(
            f"{len(queries)} queries have a rating for the labelled page and all {sizes.pages_per_query} top candidates, "
            f"{sizes.queries} are wanted",
            where="audit sizes",
            todo="rate more of the pool or ask for fewer queries",
        )
    hedged = queries["query_id"][queries["hedge"]].to_numpy(dtype=object)
    plain = queries["query_id"][~queries["hedge"]].to_numpy(dtype=object)
    wanted = int(np.round(sizes.queries * len(hedged) / len(queries)))
    wanted = max(wanted, sizes.queries - len(plain))
    hedged = rng.permutation(hedged)[:wanted]
    plain = rng.permutation(plain)[: sizes.queries - len(hedged)]

    blocks, block_size = sizes.annotators, sizes.queries // sizes.annotators
    members: list[list[str]] = [[] for _ in range(blocks)]
    order = rng.permutation(blocks)
    for position, query in enumerate(hedged):
        members[order[position % blocks]].append(str(query))
    rest = iter(plain)
    for block in members:
        block.extend(str(next(rest)) for _ in range(block_size - len(block)))
    rows = []
    chosen = set(hedged)
    for index, block in enumerate(members):
        labelled = set(rng.permutation(np.array(block, dtype=object))[: sizes.with_labelled // blocks])
        rows += [(query, query in chosen, index, query in labelled) for query in sorted(block)]
    return pd.DataFrame(rows, columns=["query_id", "hedge", "block", "shows_labelled"])


def show_pages(pool: pd.DataFrame, queries: pd.DataFrame, pages_per_query: int) -> pd.DataFrame:
    """The pages of each drawn query: the labelled page and the top n−1, or the top n. Adds `role`, `block`."""
    joined = pool.drop(columns="hedge").merge(queries, on="query_id", how="inner", validate="many_to_one")
    last = pages_per_query - joined["shows_labelled"].astype(int)
    kept = joined[(joined["rank"] <= last) & ((joined["rank"] > 0) | joined["shows_labelled"])].copy()
    kept["role"] = np.where(kept["rank"] == 0, "labelled", "mined")
    return kept.sort_values(["query_id", "rank"], kind="stable").reset_index(drop=True)


def draw_candidates(
    judged: pd.DataFrame, tiers: Sequence[str], per_tier: int, rng: np.random.Generator
) -> pd.DataFrame:
    """Equal numbers of candidates per judge tier (EV App. C: 300 of each of three).

    `judged` has query_id, page_id, tier. Raises `BadInput` for an unknown tier or a tier with too few candidates.
    """
    unknown = sorted(set(judged["tier"]) - set(tiers))
    if unknown:
        raise BadInput(
            f"unknown judge tier {unknown[0]!r}",
            where="evidence judgements, field tier",
            todo=f"known: {', '.join(tiers)}",
        )
    parts = []
    for tier in tiers:
        members = judged[judged["tier"] == tier].sort_values(["query_id", "page_id"], kind="stable")
        if len(members) < per_tier:
            raise BadInput(
                f"tier {tier!r} has {len(members)} candidates, {per_tier} are wanted",
                where="audit sizes",
                todo="lower per_tier",
            )
        parts.append(members.iloc[np.sort(rng.permutation(len(members))[:per_tier])])
    return pd.concat(parts, ignore_index=True)


def ring(annotators: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Annotator i grades blocks i and i+1 mod n (WT App. K): two graders a page, n distinct pairings.

    >>> ring(["v01", "v02", "v03"])["v03"]
    (2, 0)
    """
    n = len(annotators)
    return {name: (i, (i + 1) % n) for i, name in enumerate(annotators)}


def separated_order(groups: Sequence[str], rng: np.random.Generator) -> list[int]:
    """A random order of the items in which two of the same group never follow one another.

    At each place a group is drawn with probability proportional to its items left, among those after which the rest
    can still be separated. Raises `BadInput` when one group has more than half of the items (rounded up).
    """
    left: dict[str, list[int]] = {}
    for index in rng.permutation(len(groups)):
        left.setdefault(groups[index], []).append(int(index))
    order: list[int] = []
    previous: str | None = None
    names = sorted(left)
    for remaining in range(len(groups), 0, -1):
        # After this place `remaining-1` items are left: a group fits if it holds at most half of them, rounded up
        # (down for
        # the group just used, which may not come first).
        after = remaining - 1
        open_names = []
        for name in names:
            if name == previous or not left[name]:
                continue
            fits = len(left[name]) - 1 <= after // 2
            if fits and all(len(left[other]) <= (after + 1) // 2 for other in names if other != name):
                open_names.append(name)
        if not open_names:
            most = max(names, key=lambda name: len(left[name]))
            raise BadInput(
                f"the pages of query {most!r} cannot be kept apart: they are more than half of an annotator's",
                where="audit sizes",
                todo="let each annotator grade more queries",
            )
        weights = np.array([len(left[name]) for name in open_names], dtype=float)
        previous = open_names[int(rng.choice(len(open_names), p=weights / weights.sum()))]
        order.append(left[previous].pop())
    return order
