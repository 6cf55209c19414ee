"""One row's scored pool with its ratings: what every rule of selection reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from vdr.errors import BadInput

__all__ = ["RowPool", "row_pools"]


@dataclass(frozen=True)
class RowPool:
    """The scored candidates of one row in rank order, its labelled page kept apart.

    pages: C page ids; ranks int [C] (from 1, ascending); scores fp32 [C] (the miner's); ratings fp64 [C] in [0, 1],
    NaN where unrated or unparseable. labelled: the row's labelled page, with its score and rating; labelled_mined:
    whether the miner found it.
    """

    row_id: int
    pages: list[str]
    ranks: np.ndarray
    scores: np.ndarray
    ratings: np.ndarray
    labelled: str
    labelled_score: float
    labelled_rating: float
    labelled_mined: bool

    @property
    def rated(self) -> np.ndarray:
        """bool [C]: which candidates have a rating."""
        return ~np.isnan(self.ratings)


def row_pools(
    scored: pd.DataFrame, ratings: pd.DataFrame | None, pools: pd.DataFrame | None = None
) -> dict[int, RowPool]:
    """The pools of all rows by row_id, ascending.

    scored, pools: see `vdr.mining.files`; ratings: row_id, page_id, rating (further columns are ignored), one for
    each scored pair; None where no rule reads them. Without `pools`, a labelled page counts as mined. Raises
    BadInput where ratings are missing or about other pairs, where a rating lies outside [0, 1], or where a row
    holds no labelled page or holds it twice.
    """
    scored = scored.sort_values(["row_id", "rank"], kind="stable").reset_index(drop=True)
    values = np.full(len(scored), np.nan)
    if ratings is not None:
        keys = ["row_id", "page_id"]
        if ratings.duplicated(keys).any():
            raise BadInput("a pair is rated twice", where="ratings", todo="rate again")
        joined = scored[keys].merge(ratings[[*keys, "rating"]], on=keys, how="left", indicator=True)
        unmatched = int((joined["_merge"] != "both").sum())
        if unmatched or len(ratings) != len(scored):
            stray = len(ratings) - len(scored) + unmatched
            what = f"{unmatched} scored pairs have no rating, {stray} ratings no scored pair"
            raise BadInput(what, where="ratings", todo="rate this scored pool")
        # Ratings are hundredths kept as fp32: rounded, 0.7 is 0.7 again and a cut at 0.7 means what it says.
        values = np.round(joined["rating"].to_numpy(dtype=float), 6)
        if ((values < 0) | (values > 1)).any():
            raise BadInput("a rating lies outside [0, 1]", where="ratings.rating", todo="divide by 100")
    mined = {} if pools is None else dict(zip(pools["row_id"], pools["labelled_rank"] > 0, strict=True))
    page_ids, ranks = scored["page_id"].to_numpy(), scored["rank"].to_numpy()
    scores, row_ids = scored["score"].to_numpy(), scored["row_id"].to_numpy()
    cuts = [*np.flatnonzero(np.diff(row_ids, prepend=row_ids[:1] - 1)).tolist(), len(scored)]
    out: dict[int, RowPool] = {}
    for first, end in pairwise(cuts):
        row_id = int(row_ids[first])
        own = page_ids[first]
        pages = page_ids[first + 1 : end].tolist()
        if ranks[first] != 0 or (end - first > 1 and ranks[first + 1] < 1):
            raise BadInput(
                f"row {row_id} must hold its labelled page once, at rank 0", where="scored_pool", todo="mine again"
            )
        if own in pages or len(set(pages)) != len(pages):
            raise BadInput(f"row {row_id} holds a page twice", where="scored_pool", todo="mine again")
        part = slice(first + 1, end)
        out[row_id] = RowPool(
            row_id,
            pages,
            ranks[part],
            scores[part],
            values[part],
            own,
            float(scores[first]),
            float(values[first]),
            bool(mined.get(row_id, True)),
        )
    return out
