"""Comparing two readouts of one teacher: the 0-100 rating and the yes/no log-probability (WT App. B, §7).

A readout's table has row_id, page_id, rank and `score` (higher is more relevant; NaN where unparseable); rank 0 is
the labelled page ("gold" in the paper). Everything is over pairs of a row's labelled page with each of its mined
candidates, both scored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.errors import BadInput

__all__ = ["Comparison", "build_readouts", "compare_readouts", "readout_summary", "row_comparisons", "yes_probability"]


def yes_probability(log_yes: np.ndarray, log_no: np.ndarray) -> np.ndarray:
    """P(yes) = e^l_yes / (e^l_yes + e^l_no) from first-token log-probabilities (App. B), fp64, stable for any size
    of them."""
    difference = np.asarray(log_yes, dtype=np.float64) - np.asarray(log_no, dtype=np.float64)
    return np.exp(-np.logaddexp(0.0, -difference))


def row_comparisons(readout: pd.DataFrame) -> pd.DataFrame:
    """One line a row whose labelled page and at least one candidate are scored.

    row_id; candidates; above, ties, below: candidates scored below, like and above the labelled page, so that auc =
    (above + ties / 2) / candidates (Mann–Whitney with half credit); top3_for, top3_against: whether the labelled
    page is in the top three with ties broken for and against it.
    """
    scored = readout[readout["score"].notna()]
    gold = scored[scored["rank"] == 0].set_index("row_id")["score"]
    if not gold.index.is_unique:
        raise BadInput("a row has two labelled pages", where="readout.rank", todo="use one scored pool")
    others = scored[(scored["rank"] > 0) & scored["row_id"].isin(gold.index)]
    own = others["row_id"].map(gold)
    table = pd.DataFrame(
        {
            "row_id": others["row_id"],
            "above": (own > others["score"]).astype(int),
            "ties": (own == others["score"]).astype(int),
            "below": (own < others["score"]).astype(int),
        }
    )
    rows = table.groupby("row_id", sort=True).sum().reset_index()
    rows.insert(1, "candidates", rows[["above", "ties", "below"]].sum(axis=1))
    rows["auc"] = (rows["above"] + rows["ties"] / 2) / rows["candidates"]
    rows["top3_for"] = rows["below"] < 3
    rows["top3_against"] = rows["below"] + rows["ties"] < 3
    return rows


def readout_summary(readout: pd.DataFrame) -> dict[str, float]:
    """What App. B and §7 say of a readout: shares of all scored pairs at exactly 0 and 1, and over comparisons the
    tie share, the mean per-query AUC, and how often the labelled page is in the top three under both tie rules.
    """
    rows = row_comparisons(readout)
    scores = readout["score"].dropna()
    return {
        "pairs": float(len(readout)),
        "unparseable_share": float(readout["score"].isna().mean()) if len(readout) else float("nan"),
        "share_at_0": float((scores == 0).mean()),
        "share_at_1": float((scores == 1).mean()),
        "distinct_scores": float(scores.nunique()),
        "queries": float(len(rows)),
        "comparisons": float(rows["candidates"].sum()),
        "tie_share": float(rows["ties"].sum() / rows["candidates"].sum()) if len(rows) else float("nan"),
        "auc": float(rows["auc"].mean()),
        "top3_ties_for_labelled": float(rows["top3_for"].mean()),
        "top3_ties_against_labelled": float(rows["top3_against"].mean()),
    }


@dataclass(frozen=True)
class Comparison:
    """difference: mean AUC of the second readout minus that of the first, over the same rows; low, high: 95 %
    interval."""

    first_auc: float
    second_auc: float
    difference: float
    low: float
    high: float
    queries: int
    pairs: int
    draws: int

    def plain(self) -> dict[str, Any]:
        return dict(self.__dict__)


def compare_readouts(first: pd.DataFrame, second: pd.DataFrame, *, draws: int = 10_000, seed: int = 0) -> Comparison:
    """The difference in mean per-query AUC with a query bootstrap, on pairs that both readouts score (App. B:
    +0.055 [0.040, 0.071]).

    Queries are drawn with replacement, both readouts together. Raises BadInput where nothing is shared.
    """
    keys = ["row_id", "page_id", "rank"]
    both = first.dropna(subset=["score"]).merge(
        second.dropna(subset=["score"]), on=keys, suffixes=("_first", "_second")
    )
    one, two = (row_comparisons(both[keys].assign(score=both[f"score_{name}"])) for name in ("first", "second"))
    if not len(one):
        raise BadInput(
            "the readouts share no row with its labelled page and a candidate", where="readouts", todo="score one pool"
        )
    delta = two["auc"].to_numpy() - one["auc"].to_numpy()
    rng = np.random.default_rng(seed)
    means = np.empty(draws)
    for start in range(0, draws, 1000):
        size = min(1000, draws - start)
        means[start : start + size] = delta[rng.integers(0, len(delta), size=(size, len(delta)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Comparison(
        float(one["auc"].mean()),
        float(two["auc"].mean()),
        float(delta.mean()),
        float(low),
        float(high),
        len(delta),
        int(one["candidates"].sum()),
        draws,
    )


def build_readouts(
    ratings: pd.DataFrame,
    yesno: pd.DataFrame,
    out: Path,
    measures: dict[str, Any],
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> None:
    """Write `out/readouts.csv` (a line a readout, `readout_summary`'s columns) and `out/comparison.json`, yes/no
    minus rating.

    ratings: row_id, page_id, rank, rating; yesno: row_id, page_id, rank, p_yes, of some or all of the same pairs.
    Both summaries are over the pairs that `yesno` asks about, so that they share a denominator.
    """
    keys = ["row_id", "page_id", "rank"]
    asked = yesno[keys].merge(ratings[[*keys, "rating"]], on=keys, how="left", validate="one_to_one")
    rating = asked[keys].assign(score=asked["rating"].astype(float))
    answer = yesno[keys].assign(score=yesno["p_yes"].astype(float))
    lines = [{"readout": name, **readout_summary(table)} for name, table in (("rating", rating), ("yes/no", answer))]
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines).to_csv(out / "readouts.csv", index=False, lineterminator="\n")
    comparison = compare_readouts(rating, answer, draws=draws, seed=seed).plain()
    (out / "comparison.json").write_text(json.dumps(comparison, indent=1) + "\n", encoding="utf-8")
    measures["readouts"] = {line["readout"]: {k: v for k, v in line.items() if k != "readout"} for line in lines}
    measures["comparison"] = comparison
