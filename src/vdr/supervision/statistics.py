"""What an arm's rows train on: how clean its negatives are, how its targets are shaped, how two arms' negatives
overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from vdr.supervision.rowpools import RowPool
from vdr.supervision.targets import target_entropy, target_shape

__all__ = ["TABLE5_TEMPERATURES", "describe_rows", "entropy_table", "negatives_overlap", "negatives_table"]

TABLE5_TEMPERATURES = (1.0, 0.5, 0.1, 0.05, 0.02)


def describe_rows(frame: pd.DataFrame, pools: Mapping[int, RowPool], rows: pd.DataFrame) -> dict[str, Any]:
    """The report of one arm's rows: plain numbers. frame: as in rows.parquet; rows: for query strings."""
    report: dict[str, Any] = {}
    if any(len(n) for n in frame["negatives"]):
        report["negatives"] = _negatives(frame, pools, rows)
    if any(len(t) for t in frame["candidates"]):
        taken = frame[frame["candidates"].map(len) > 0]
        ratings = [_ratings(pools[r], pages) for r, pages in zip(taken["row_id"], taken["candidates"], strict=True)]
        labelled = [page in pages for page, pages in zip(taken["page_id"], taken["candidates"], strict=True)]
        other = [
            any(p != own and r >= 0.9 for p, r in zip(pages, given, strict=True))
            for own, pages, given in zip(taken["page_id"], taken["candidates"], ratings, strict=True)
        ]
        report["targets"] = {
            "rows_without_a_candidate": int(len(frame) - len(taken)),
            "rows_with_fewer_candidates": int(
                (taken["candidates"].map(len) < taken["candidates"].map(len).max()).sum()
            ),
            "labelled_page_among_them_share": float(np.mean(labelled)),
            "another_page_rated_0.9_share": float(np.mean(other)),
            "rows_with_weight": int((frame["target_weight"] > 0).sum()),
            "shape": target_shape(ratings),
        }
        if any(len(t) > 1 for t in taken["targets"]):
            report["targets"]["entropy"] = entropy_table(taken["targets"]).to_dict("records")
    return report


def _ratings(pool: RowPool, pages: Iterable[str]) -> list[float]:
    known = dict(zip(pool.pages, pool.ratings.tolist(), strict=True))
    known[pool.labelled] = pool.labelled_rating
    return [known[page] for page in pages]


def negatives_table(frame: pd.DataFrame, pools: Mapping[int, RowPool]) -> pd.DataFrame:
    """row_id, page_id, order (0 first), rank, score, rating (NaN if unrated), backfill: one line a negative."""
    lines = []
    for row_id, negatives, filled in zip(frame["row_id"], frame["negatives"], frame["filled"], strict=True):
        pool = pools[row_id]
        at = {page: i for i, page in enumerate(pool.pages)}
        for order, page in enumerate(negatives):
            i = at[page]
            back = order >= len(negatives) - filled
            lines.append((row_id, page, order, int(pool.ranks[i]), float(pool.scores[i]), float(pool.ratings[i]), back))
    return pd.DataFrame(lines, columns=["row_id", "page_id", "order", "rank", "score", "rating", "backfill"])


def _negatives(frame: pd.DataFrame, pools: Mapping[int, RowPool], rows: pd.DataFrame) -> dict[str, Any]:
    table = negatives_table(frame, pools)
    rated = table["rating"].notna()
    counts = frame["negatives"].map(len)
    labels = rows.groupby("query")["page_id"].agg(set)
    query = frame.set_index("row_id")["query"]
    elsewhere = [page in labels[query[row]] for row, page in zip(table["row_id"], table["page_id"], strict=True)]
    accepted = table[~table["backfill"]]
    return {
        "negatives": len(table),
        "rows_with_fewer_negatives": int((counts < counts.max()).sum()),
        "rows_with_backfill": int((frame["filled"] > 0).sum()),
        "backfill_share": float(table["backfill"].mean()),
        "rated_relevant_share": float((table.loc[rated, "rating"] >= 0.5).mean()) if rated.any() else None,
        "median_rank": float(table["rank"].median()),
        "accepted_beyond_rank_10_share": float((accepted["rank"] > 10).mean()) if len(accepted) else None,
        "labelled_elsewhere_for_the_same_query_string": int(np.sum(elsewhere)),
    }


def entropy_table(targets: Iterable[list[float]], temperatures: Iterable[float] = TABLE5_TEMPERATURES) -> pd.DataFrame:
    """Table 5's form: a line a temperature (temperature, entropy, max_prob, percent_of_uniform)."""
    rows = list(targets)
    return pd.DataFrame([target_entropy(rows, t) for t in temperatures])


def negatives_overlap(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, float]:
    """How far two arms' negatives agree (§5: identical for 15 % of queries, 1.3 of four shared).

    a, b: rows.parquet of two arms over the same rows. Returns rows, identical_share and mean_shared.
    """
    both = a[["row_id", "negatives"]].merge(b[["row_id", "negatives"]], on="row_id", validate="one_to_one")
    pairs = [(set(x), set(y)) for x, y in zip(both["negatives_x"], both["negatives_y"], strict=True)]
    return {
        "rows": float(len(pairs)),
        "identical_share": float(np.mean([x == y for x, y in pairs])),
        "mean_shared": float(np.mean([len(x & y) for x, y in pairs])),
    }
