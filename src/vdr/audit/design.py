"""From rated pools to a frozen study: the pairs, the blocks, the annotators' orders, and what an annotator may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from PIL import Image

from vdr.audit.sampling import Sizes, draw_candidates, draw_queries, query_complete, ring, separated_order, show_pages
from vdr.audit.scales import TIERS
from vdr.errors import BadInput

__all__ = [
    "Design",
    "PageSource",
    "annotator_names",
    "design_everyone",
    "design_ring",
    "design_tiers",
    "pairs_from_artefacts",
]

PAIR_COLUMNS = ["item", "query_id", "page_id", "role", "rank", "score", "tier", "block"]
QUERY_COLUMNS = ["query_id", "query", "hedge", "block", "shows_labelled", "breadth"]

PageSource = Callable[[str], Image.Image]


@dataclass
class Design:
    """A study before it is written.

    pairs: one row per audited (query, page): item (opaque id), role (labelled | mined), rank, score, tier, block.
    queries: one row per query: text, hedge, block, breadth ('' while unclassified).
    orders: annotator → item ids in the order of that annotator. notes: facts for the manifest (pool size, rates).
    """

    kind: str
    scale: str
    pairs: pd.DataFrame
    queries: pd.DataFrame
    orders: dict[str, list[str]]
    seed: int
    notes: dict[str, object] = field(default_factory=dict)


def annotator_names(n: int) -> list[str]:
    """Pseudonyms v01, v02, … (WT Ethics: annotators are known by these alone)."""
    return [f"v{i + 1:02d}" for i in range(n)]


def pairs_from_artefacts(scored_pool: pd.DataFrame, ratings: pd.DataFrame) -> pd.DataFrame:
    """Join `scored_pool.parquet` (row_id, page_id, rank) and `ratings.parquet` (row_id, page_id, rating): the
    sampler's input.

    Rank 0 is the labelled page. Returns query_id (`str(row_id)`), page_id, rank, score. Raises `BadInput` for
    duplicate pairs.
    """
    for name, frame, columns in (
        ("scored_pool.parquet", scored_pool, ("row_id", "page_id", "rank")),
        ("ratings.parquet", ratings, ("row_id", "page_id", "rating")),
    ):
        missing = [column for column in columns if column not in frame]
        if missing:
            raise BadInput(f"no column {missing[0]!r}", where=name)
        if frame.duplicated(["row_id", "page_id"]).any():
            row = frame[frame.duplicated(["row_id", "page_id"])].iloc[0]
            raise BadInput(f"row {row['row_id']} has page {row['page_id']!r} twice", where=name)
    joined = scored_pool[["row_id", "page_id", "rank"]].merge(
        ratings[["row_id", "page_id", "rating"]], on=["row_id", "page_id"], how="left"
    )
    joined["query_id"] = joined["row_id"].astype(str)
    joined["score"] = joined["rating"].astype(float)
    return joined[["query_id", "page_id", "rank", "score"]]


def _finish(
    kind: str,
    scale: str,
    pairs: pd.DataFrame,
    queries: pd.DataFrame,
    texts: Mapping[str, str],
    breadth: Mapping[str, str] | None,
    assignment: Mapping[str, Sequence[int]],
    rng: np.random.Generator,
    seed: int,
    notes: Mapping[str, object],
) -> Design:
    pairs = pairs.copy()
    # Ids are dealt at random, so that neither an id nor its place in a file tells rank or label.
    pairs["item"] = [f"i{number + 1:04d}" for number in rng.permutation(len(pairs))]
    for column, value in (("role", "mined"), ("rank", -1), ("score", np.nan), ("tier", "")):
        if column not in pairs:
            pairs[column] = value
    queries = queries.copy()
    missing = [query for query in queries["query_id"] if query not in texts]
    if missing:
        raise BadInput(f"no text for query {missing[0]!r}", where="audit design, queries")
    queries["query"] = [texts[query] for query in queries["query_id"]]
    queries["breadth"] = [(breadth or {}).get(query, "") for query in queries["query_id"]]
    orders = {}
    for annotator, blocks in assignment.items():
        own = pairs[pairs["block"].isin(list(blocks))].sort_values("item", kind="stable")
        items = own["item"].tolist()
        orders[annotator] = [items[index] for index in separated_order(own["query_id"].tolist(), rng)]
    pairs = pairs[PAIR_COLUMNS].sort_values(["query_id", "rank", "page_id"], kind="stable").reset_index(drop=True)
    queries = queries[QUERY_COLUMNS].sort_values("query_id", kind="stable").reset_index(drop=True)
    return Design(kind, scale, pairs, queries, orders, seed, dict(notes))


def design_ring(
    scored: pd.DataFrame,
    texts: Mapping[str, str],
    sizes: Sizes,
    *,
    seed: int,
    hedge: float = 0.5,
    breadth: Mapping[str, str] | None = None,
) -> Design:
    """WT's study (App. K). `scored` as in `query_complete`; `texts` and `breadth` by query id.

    Raises `BadInput` for sizes that cannot be met.
    """
    rng = np.random.default_rng(seed)
    pool = query_complete(scored, top=sizes.pages_per_query, hedge=hedge)
    queries = draw_queries(pool, sizes, rng)
    pairs = show_pages(pool, queries, sizes.pages_per_query)
    complete = pool.drop_duplicates("query_id")
    notes = {
        "queries_rated": int(scored["query_id"].nunique()),
        "queries_complete": len(complete),
        "hedge_rate_pool": float(complete["hedge"].mean()),
        "hedge_rate_drawn": float(queries["hedge"].mean()),
    }
    return _finish(
        "ring", "relevance", pairs, queries, texts, breadth, ring(annotator_names(sizes.annotators)), rng, seed, notes
    )


def design_tiers(
    judged: pd.DataFrame, texts: Mapping[str, str], *, per_tier: int, annotators: int, seed: int
) -> Design:
    """EV's study (App. C): equal numbers per judge tier, every annotator grades every candidate.

    `judged` has query_id, page_id, tier (full | partial | none). Raises `BadInput` for an even number of annotators
    (no majority).
    """
    if annotators < 3 or annotators % 2 == 0:
        raise BadInput(
            f"{annotators} annotators cannot give a majority", where="audit sizes", todo="take an odd number, 3 or more"
        )
    rng = np.random.default_rng(seed)
    pairs = draw_candidates(judged, TIERS, per_tier, rng)
    pairs["block"] = 0
    queries = pd.DataFrame({"query_id": pairs["query_id"].unique()})
    queries["hedge"], queries["block"], queries["shows_labelled"] = False, 0, False
    notes = {f"judged_{tier}": int((judged["tier"] == tier).sum()) for tier in TIERS}
    assignment = dict.fromkeys(annotator_names(annotators), (0,))
    return _finish("tiers", "evidence", pairs, queries, texts, None, assignment, rng, seed, notes)


def design_everyone(
    pairs: pd.DataFrame,
    texts: Mapping[str, str],
    *,
    annotators: int,
    seed: int,
    hedge: float = 0.5,
    breadth: Mapping[str, str] | None = None,
) -> Design:
    """A small study in which each annotator grades every pair (own pages). `pairs` has query_id, page_id and, where
    known, role and score. Raises `BadInput` for fewer than two annotators."""
    if annotators < 2:
        raise BadInput("one annotator has nobody to agree with", where="audit sizes", todo="take at least 2")
    rng = np.random.default_rng(seed)
    pairs = pairs.copy()
    pairs["block"] = 0
    if "role" not in pairs:
        pairs["role"] = "mined"
    queries = pd.DataFrame({"query_id": pairs["query_id"].unique()})
    scores = pairs["score"] if "score" in pairs else pd.Series(np.nan, index=pairs.index)
    queries["hedge"] = queries["query_id"].isin(pairs["query_id"][(scores == hedge) & (pairs["role"] == "mined")])
    queries["block"] = 0
    queries["shows_labelled"] = queries["query_id"].isin(pairs["query_id"][pairs["role"] == "labelled"])
    assignment = dict.fromkeys(annotator_names(annotators), (0,))
    return _finish("everyone", "relevance", pairs, queries, texts, breadth, assignment, rng, seed, {})
