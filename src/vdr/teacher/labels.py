"""How incomplete a corpus's labels are, by the teacher's ratings and (where known) by the truth (WT §6, §8,
Appendices L and O).

All functions read a table of pairs, one line per scored pair (`label_pairs`); rank 0 is the labelled page. Relevant
means rated at or above 0.5, truly relevant a grade of 2 or 3. Shares are over rated pairs: unparseable ones are
left out, as the paper drops them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.errors import BadInput

__all__ = [
    "BANDS",
    "build_labels",
    "by_source",
    "by_stratum",
    "grades_of",
    "label_pairs",
    "label_statistics",
    "per_query",
    "rank_bands",
    "summary",
    "truth_comparison",
    "write_statistics",
]

#: Table 17's bands of ranks (first, last); the labelled page comes last.
BANDS = {
    "1": (1, 1),
    "2": (2, 2),
    "3-4": (3, 4),
    "5-9": (5, 9),
    "10-20": (10, 20),
    "21-100": (21, 100),
    "labelled page": (0, 0),
}
CUT = 0.5
TRUE_GRADE = 2


def grades_of(pairs: pd.DataFrame, grades: np.ndarray, row_ids: list[int], page_ids: list[str]) -> np.ndarray:
    """The true grade of each pair, int8 [len(pairs)]. grades: [rows, pages] in the order of row_ids and page_ids.

    Raises BadInput where the shape does not fit or a pair is outside it.
    """
    if grades.shape != (len(row_ids), len(page_ids)):
        raise BadInput(
            f"grades are {grades.shape}, the corpus has {len(row_ids)} rows and {len(page_ids)} pages",
            where="truth.npz",
        )
    row_at, page_at = pd.Index(row_ids).get_indexer(pairs["row_id"]), pd.Index(page_ids).get_indexer(pairs["page_id"])
    if (row_at < 0).any() or (page_at < 0).any():
        raise BadInput("a scored pair is outside the truth", where="truth.npz", todo="use the truth of this corpus")
    return np.asarray(grades[row_at, page_at], dtype=np.int8)


def label_pairs(
    scored: pd.DataFrame, ratings: pd.DataFrame | None, rows: pd.DataFrame, grade: np.ndarray | None = None
) -> pd.DataFrame:
    """The table of pairs: row_id, page_id, rank, score, rating, grade, source, breadth, sorted by row_id and rank.

    rating is NaN where unrated, grade NaN where the truth is not known; grade: as from `grades_of`, in the order of
    `scored`.
    """
    pairs = scored[["row_id", "page_id", "rank", "score"]].reset_index(drop=True)
    pairs["grade"] = np.nan if grade is None else np.asarray(grade, dtype=float)
    if ratings is None:
        pairs["rating"] = np.nan
    else:
        pairs = pairs.merge(
            ratings[["row_id", "page_id", "rating"]], on=["row_id", "page_id"], how="left", validate="one_to_one"
        )
        pairs["rating"] = pairs["rating"].astype(float).round(6)  # fp32 hundredths
    known = rows.set_index("row_id")
    pairs["source"] = known["source"].reindex(pairs["row_id"]).to_numpy()
    pairs["breadth"] = known["breadth"].reindex(pairs["row_id"]).to_numpy() if "breadth" in known else None
    return pairs.sort_values(["row_id", "rank"], kind="stable").reset_index(drop=True)


def _share(values: pd.Series | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _rates(pairs: pd.DataFrame) -> dict[str, float]:
    rated, graded = pairs["rating"].dropna(), pairs["grade"].dropna()
    return {
        "mean_rating": _share(rated),
        "rated_relevant": _share(rated >= CUT),
        "truly_relevant": _share(graded >= TRUE_GRADE),
    }


def rank_bands(pairs: pd.DataFrame, bands: Mapping[str, tuple[int, int]] | None = None) -> pd.DataFrame:
    """Table 17: band, pairs, mean_rating, rated_relevant, truly_relevant (NaN where nothing is known)."""
    lines = []
    for name, (first, last) in (BANDS if bands is None else bands).items():
        part = pairs[pairs["rank"].between(first, last)]
        lines.append({"band": name, "pairs": len(part), **_rates(part)})
    return pd.DataFrame(lines)


def per_query(pairs: pd.DataFrame) -> pd.DataFrame:
    """One line a row: row_id, source, breadth, rated, relevant, truly_relevant, below, top1, contaminated, stratum,
    backfill.

    rated, relevant, below: rated candidates, those at or above the cut, those under it; the labelled page is left
    out everywhere. top1: whether rank 1 is rated relevant (NaN if unrated). contaminated: c(q), how many of ranks
    1–4 are rated relevant, NaN unless all four are rated (App. L). backfill: whether fewer than four are rated
    below the cut, so that N must fill up.
    """
    others = pairs[pairs["rank"] > 0]
    rated = others[others["rating"].notna()]
    rows = pairs.drop_duplicates("row_id").set_index("row_id")[["source", "breadth"]].copy()

    def count(frame: pd.DataFrame) -> pd.Series:
        return frame.groupby("row_id").size().reindex(rows.index, fill_value=0)

    rows["rated"] = count(rated)
    rows["relevant"] = count(rated[rated["rating"] >= CUT])
    rows["below"] = rows["rated"] - rows["relevant"]
    known = others["grade"].notna().groupby(others["row_id"]).any().reindex(rows.index, fill_value=False)
    rows["truly_relevant"] = count(others[others["grade"] >= TRUE_GRADE]).where(known.astype(bool))
    first = rated[rated["rank"] == 1].set_index("row_id")["rating"]
    rows["top1"] = (first >= CUT).astype(float).reindex(rows.index)
    top = rated[rated["rank"] <= 4]
    complete = count(top) == 4
    rows["contaminated"] = count(top[top["rating"] >= CUT]).where(complete)
    rows["stratum"] = rows["contaminated"].map(_stratum, na_action="ignore")
    rows["backfill"] = rows["below"] < 4
    rows["negatives_relevant"] = (4 - rows["below"]).clip(lower=0).where(rows["rated"] >= 4)
    return rows.reset_index()


def _stratum(c: float) -> str:
    return "clean" if c == 0 else "moderate" if c <= 2 else "severe"


def by_source(pairs: pd.DataFrame) -> pd.DataFrame:
    """Appendix O by source and for `all`: queries, top1_rated_relevant, top1_truly_relevant, median_relevant,
    none_share, rated_relevant (of all candidates), labelled_rated_relevant, repeated strings left to the corpus."""
    queries = per_query(pairs)
    lines = []
    sources = [*sorted(queries["source"].dropna().unique()), "all"]
    for source in sources:
        own = queries if source == "all" else queries[queries["source"] == source]
        part = pairs if source == "all" else pairs[pairs["source"] == source]
        scored = own[own["rated"] > 0]
        lines.append(
            {
                "source": source,
                "queries": len(own),
                "queries_with_a_rated_candidate": len(scored),
                "top1_rated_relevant": _share(own["top1"].dropna()),
                "top1_truly_relevant": _share(part.loc[part["rank"] == 1, "grade"].dropna() >= TRUE_GRADE),
                "median_relevant": float(scored["relevant"].median()),
                "none_share": _share(scored["relevant"] == 0),
                "candidates_rated_relevant": _rates(part[part["rank"] > 0])["rated_relevant"],
                "labelled_rated_relevant": _rates(part[part["rank"] == 0])["rated_relevant"],
            }
        )
    return pd.DataFrame(lines)


def by_stratum(pairs: pd.DataFrame) -> pd.DataFrame:
    """Table 14: stratum, queries, share, backfill_share, negatives_relevant (of four); the last line pools all
    strata."""
    queries = per_query(pairs).dropna(subset=["stratum"])
    lines = []
    for stratum in ("clean", "moderate", "severe", "all"):
        part = queries if stratum == "all" else queries[queries["stratum"] == stratum]
        lines.append(
            {
                "stratum": stratum,
                "queries": len(part),
                "share": len(part) / len(queries) if len(queries) else float("nan"),
                "backfill_share": _share(part["backfill"]),
                "negatives_relevant": _share(part["negatives_relevant"].dropna()),
            }
        )
    return pd.DataFrame(lines)


def summary(pairs: pd.DataFrame) -> dict[str, float]:
    """§6's sentences as numbers; keys as in the papers' reference file where it has them."""
    queries = per_query(pairs)
    scored = queries[queries["rated"] > 0]
    complete = queries.dropna(subset=["contaminated"])
    severe = complete[complete["contaminated"] >= 3]
    return {
        "queries": float(len(queries)),
        "queries_with_a_rated_candidate": float(len(scored)),
        "queries_with_top_four_rated": float(len(complete)),
        "median_relevant_per_query": float(scored["relevant"].median()),
        "queries_with_none": _share(scored["relevant"] == 0),
        "top1_rated_relevant": _share(queries["top1"].dropna()),
        "at_least_three_of_four": _share(complete["contaminated"] >= 3),
        "backfill_needed_of_those": _share(severe["backfill"]),
        "negatives_rated_relevant": _share(complete["negatives_relevant"].dropna()) / 4,
        "median_truly_relevant_per_query": float(queries["truly_relevant"].median()),
        "truly_relevant_of_top_four": _share(pairs.loc[pairs["rank"].between(1, 4), "grade"].dropna() >= TRUE_GRADE)
        * 4,
    }


def truth_comparison(pairs: pd.DataFrame, first: int = 1, last: int = 100) -> dict[str, float]:
    """The teacher against the truth over rated candidates of ranks `first` to `last` (Table 4's rows read ranks 1
    to 4).

    auc: tie-aware, pooled over pairs. precision: truly relevant among those rated relevant. miss_rate: truly
    relevant among those rated irrelevant. recall, specificity, accuracy, true_share as usual; NaN where a side is
    empty.
    """
    part = pairs[pairs["rank"].between(first, last) & pairs["rating"].notna() & pairs["grade"].notna()]
    truth, said = (part["grade"] >= TRUE_GRADE).to_numpy(), (part["rating"] >= CUT).to_numpy()
    ranks = part["rating"].rank(method="average").to_numpy()
    positive, negative = int(truth.sum()), int((~truth).sum())
    auc = float("nan")
    if positive and negative:
        auc = (ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative)
    return {
        "pairs": float(len(part)),
        "true_share": _share(truth),
        "auc": float(auc),
        "precision": _share(truth[said]),
        "miss_rate": _share(truth[~said]),
        "recall": _share(said[truth]),
        "specificity": _share(~said[~truth]),
        "accuracy": _share(said == truth),
    }


def label_statistics(pairs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """All tables by name: rank_bands, by_source, by_stratum, summary (statistic, value), and truth where grades are
    known."""
    tables = {
        "rank_bands": rank_bands(pairs),
        "by_source": by_source(pairs),
        "by_stratum": by_stratum(pairs),
        "summary": pd.DataFrame(summary(pairs).items(), columns=["statistic", "value"]),
    }
    if pairs["grade"].notna().any() and pairs["rating"].notna().any():
        lines: list[dict[str, Any]] = [
            {"candidates": "ranks 1-4", **truth_comparison(pairs, 1, 4)},
            {"candidates": "all scored", **truth_comparison(pairs)},
        ]
        for breadth in sorted(pairs["breadth"].dropna().unique()):
            lines.append(
                {"candidates": f"ranks 1-4, {breadth}", **truth_comparison(pairs[pairs["breadth"] == breadth], 1, 4)}
            )
        tables["truth"] = pd.DataFrame(lines)
    return tables


def write_statistics(tables: Mapping[str, pd.DataFrame], out: Path) -> None:
    """Write every table as `<out>/<name>.csv` (shortest exact decimals, so the same numbers give the same bytes)."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False, lineterminator="\n")


def build_labels(
    scored: pd.DataFrame,
    ratings: pd.DataFrame | None,
    rows: pd.DataFrame,
    out: Path,
    measures: dict[str, Any],
    *,
    truth: np.ndarray | None = None,
    row_ids: list[int] | None = None,
    page_ids: list[str] | None = None,
) -> None:
    """Write all label statistics as CSV into `out`: rank_bands (Table 17), by_source (App. O), by_stratum (Table
    14), summary (§6), truth (Table 4's form against the truth, where it is known).

    rows: the mined rows (row_id, source, breadth). truth: grades int8 [rows, pages] with the row_ids and page_ids
    of its axes. Measures: the summary, and the truth table's line over all scored candidates.
    """
    grade = None
    if truth is not None:
        if row_ids is None or page_ids is None:
            raise BadInput(
                "the truth needs the rows and pages of its axes", where="truth.npz", todo="give row_ids and page_ids"
            )
        grade = grades_of(scored, truth, row_ids, page_ids)
    tables = label_statistics(label_pairs(scored, ratings, rows, grade))
    write_statistics(tables, out)
    measures["labels"] = dict(tables["summary"].itertuples(index=False, name=None))
    if "truth" in tables:
        measures["teacher_against_truth"] = tables["truth"].set_index("candidates").loc["all scored"].to_dict()
