"""The pre-specified analysis of a relevance study: WT Table 4, Table 13 and the checks of §8 and App. K."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import fisher_exact, median_abs_deviation

from vdr.audit.agreement import (
    Estimate,
    binary_table,
    cluster_share,
    cohen,
    kappa_of_tables,
    resampled_interval,
)
from vdr.audit.judgements import Study
from vdr.audit.plan import Cut, Plan
from vdr.audit.scales import CANNOT_JUDGE
from vdr.audit.study import BREADTHS
from vdr.errors import BadInput

__all__ = [
    "analyse_relevance",
    "annotator_table",
    "headline",
    "pairings",
    "relevant_per_query",
    "with_decisions",
    "write_result",
]


def with_decisions(study: Study) -> pd.DataFrame:
    """The judgements plus `judged` (not x), `relevant` (grade ≥ the plan's) and `protected` (rating ≥ cut; NaN
    rating: False)."""
    frame = study.judgements.copy()
    frame["judged"] = frame["grade"] != CANNOT_JUDGE
    numeric = pd.to_numeric(frame["grade"].where(frame["judged"]), errors="coerce")
    frame["relevant"] = (numeric >= study.plan.relevant_grade).to_numpy(bool)
    frame["protected"] = study.plan.base_cut.protects(frame["score"].to_numpy(float))
    frame["mined"] = frame["role"] == "mined"
    return frame


def _share(frame: pd.DataFrame, plan: Plan) -> Estimate:
    """The relevant share of the given judgements, queries as clusters."""
    per_query = frame.groupby("query_id")["relevant"].agg(["sum", "count"])
    return cluster_share(
        per_query["sum"].to_numpy(),
        per_query["count"].to_numpy(),
        resamples=plan.resamples,
        level=plan.interval,
        seed=plan.seed,
    )


def _usable(frame: pd.DataFrame) -> pd.DataFrame:
    """Judgements of mined candidates that are not x and whose page has a rating."""
    return frame[frame["mined"] & frame["judged"] & frame["score"].notna()]


def precision(frame: pd.DataFrame, plan: Plan, cut: Cut | None = None) -> Estimate:
    """Of the candidates the teacher protects, the share an annotator calls relevant."""
    usable = _usable(frame)
    mask = (cut or plan.base_cut).protects(usable["score"].to_numpy(float))
    return _share(usable[mask], plan)


def miss(frame: pd.DataFrame, plan: Plan, cut: Cut | None = None) -> Estimate:
    """Of the candidates the teacher rejects, the share an annotator calls relevant."""
    usable = _usable(frame)
    mask = (cut or plan.base_cut).protects(usable["score"].to_numpy(float))
    return _share(usable[~mask], plan)


def _complete_views(frame: pd.DataFrame, full: dict[str, int]) -> pd.DataFrame:
    """Views (annotator, query) of queries that show no labelled page, all pages graded, none of them x: relevant
    count per view."""
    views = frame[frame["query_id"].isin(full)].groupby(["query_id", "annotator"])
    table = views.agg(relevant=("relevant", "sum"), judged=("judged", "sum"), shown=("judged", "size")).reset_index()
    expected = table["query_id"].map(full)
    return table[(table["shown"] == expected) & (table["judged"] == expected)]


def relevant_per_query(frame: pd.DataFrame, pairs: pd.DataFrame, plan: Plan) -> dict:
    """Mean relevant pages per view (WT §6, App. K): each annotator's view of a query is one observation, a view with
    an x among its pages is dropped whole. The test is whether the interval's lower end exceeds one."""
    with_label = set(pairs["query_id"][pairs["role"] == "labelled"])
    mined = pairs[~pairs["query_id"].isin(with_label)]
    full = mined.groupby("query_id")["page_id"].nunique().to_dict()
    kept = _complete_views(frame, full)
    sizes = set(full.values())
    per_query = kept.groupby("query_id")["relevant"].agg(["sum", "count"])
    estimate = cluster_share(
        per_query["sum"].to_numpy(),
        per_query["count"].to_numpy(),
        resamples=plan.resamples,
        level=plan.interval,
        seed=plan.seed,
    )
    all_views = len(frame[frame["query_id"].isin(full)][["query_id", "annotator"]].drop_duplicates())
    return {
        **estimate,
        "of": sizes.pop() if len(sizes) == 1 else None,
        "views_dropped": all_views - len(kept),
        "queries_dropped": len(full) - int(estimate["clusters"]),
        "exceeds_one": bool(estimate["low"] is not None and estimate["low"] > 1),
    }


def pairings(frame: pd.DataFrame) -> pd.DataFrame:
    """κ per pair of annotators over the mined pages both judged (x from either leaves the pair's count).

    Columns a, b, n, kappa (NaN where undefined), and the per-query 2×2 counts in `tables` (dict query → [2, 2]).
    """
    usable = frame[frame["mined"] & frame["judged"]]
    by_annotator = {
        name: group.set_index(["query_id", "page_id"])["relevant"] for name, group in usable.groupby("annotator")
    }
    rows = []
    for a, b in combinations(sorted(by_annotator), 2):
        both = pd.concat([by_annotator[a], by_annotator[b]], axis=1, join="inner", keys=["a", "b"])
        if both.empty:
            continue
        tables = {query: binary_table(group["a"], group["b"]) for query, group in both.groupby(level="query_id")}
        kappa = cohen(np.sum(list(tables.values()), axis=0))
        rows.append((a, b, len(both), np.nan if kappa is None else kappa, tables))
    return pd.DataFrame(rows, columns=["a", "b", "n", "kappa", "tables"])


def _human_kappa(pairs: pd.DataFrame, plan: Plan) -> dict:
    defined = pairs.dropna(subset="kappa")
    queries = sorted({query for tables in pairs["tables"] for query in tables})
    place = {query: index for index, query in enumerate(queries)}
    sums = np.zeros((len(queries), len(pairs), 2, 2))
    for column, tables in enumerate(pairs["tables"]):
        for query, table in tables.items():
            sums[place[query], column] = table

    def mean_kappa(drawn: np.ndarray) -> np.ndarray:
        kappa = kappa_of_tables(drawn)
        known = np.isfinite(kappa).sum(-1)
        return np.divide(np.nansum(kappa, -1), known, out=np.full(len(kappa), np.nan), where=known > 0)

    low, high = resampled_interval(sums, mean_kappa, resamples=plan.resamples, level=plan.interval, seed=plan.seed)
    mean = float(defined["kappa"].mean()) if len(defined) else None
    undefined = [f"{row.a}–{row.b}" for row in pairs[pairs["kappa"].isna()].itertuples()]
    return {
        **Estimate(mean, low, high, int(pairs["n"].sum()), len(queries)),
        "pairings": len(pairs),
        "undefined": undefined,
        "lowest": float(defined["kappa"].min()) if len(defined) else None,
        "highest": float(defined["kappa"].max()) if len(defined) else None,
    }


def _teacher_kappa(frame: pd.DataFrame, plan: Plan) -> Estimate:
    usable = _usable(frame)
    tables = [binary_table(group["protected"], group["relevant"]) for _, group in usable.groupby("query_id")]
    if not tables:
        return Estimate(None, None, None, 0, 0)
    sums = np.stack(tables)
    low, high = resampled_interval(sums, kappa_of_tables, resamples=plan.resamples, level=plan.interval, seed=plan.seed)
    return Estimate(cohen(sums.sum(0)), low, high, len(usable), len(tables))


def annotator_table(frame: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """WT Table 13, left: one row per annotator; `outlier` marks relevant shares beyond the plan's number of MADs."""
    rows = []
    for name, own in frame.groupby("annotator"):
        judged = own[own["mined"] & own["judged"]]
        rated = judged[judged["score"].notna()]
        gold = own[~own["mined"] & own["judged"]]
        rows.append(
            {
                "annotator": name,
                "judgements": len(own),
                "median_seconds": float(own["seconds"].median()),
                "cannot_judge": float((~own["judged"]).mean()),
                "relevant": float(judged["relevant"].mean()) if len(judged) else np.nan,
                "agrees_with_teacher": float((rated["relevant"] == rated["protected"]).mean())
                if len(rated)
                else np.nan,
                "gold_relevant": int(gold["relevant"].sum()),
                "gold_judged": len(gold),
            }
        )
    table = pd.DataFrame(rows)
    rates = table["relevant"].dropna().to_numpy()
    spread = float(median_abs_deviation(rates, scale="normal")) if len(rates) else 0.0
    table["outlier"] = (
        (table["relevant"] - np.median(rates)).abs() > plan.outlier_mads * spread if spread > 0 else False
    )
    return table


def headline(frame: pd.DataFrame, pairs: pd.DataFrame, plan: Plan, *, split: bool) -> dict:
    """The figures of WT Table 4. With `split`, also precision by specific/broad and whether the two intervals are
    disjoint."""
    human = _human_kappa(pairings(frame), plan)
    result: dict = {
        "precision": precision(frame, plan),
        "miss": miss(frame, plan),
        "relevant_per_query": relevant_per_query(frame, pairs, plan),
        "teacher_human_kappa": _teacher_kappa(frame, plan),
        "human_human_kappa": human,
    }
    if split:
        for breadth in BREADTHS:
            result[f"precision_{breadth}"] = precision(frame[frame["breadth"] == breadth], plan)
        specific, broad = (result[f"precision_{breadth}"] for breadth in BREADTHS)
        known = None not in (specific["low"], broad["high"], specific["high"], broad["low"])
        result["breadth_disjoint"] = bool(
            known and (specific["low"] > broad["high"] or broad["low"] > specific["high"])
        )
    return result


def _leave_one_out(frame: pd.DataFrame, pairs: pd.DataFrame, plan: Plan, *, split: bool) -> list[dict]:
    rows = []
    for annotator in sorted(frame["annotator"].unique()):
        left = headline(frame[frame["annotator"] != annotator], pairs, plan, split=split)
        teacher, human = left["teacher_human_kappa"]["value"], left["human_human_kappa"]["value"]
        rows.append(
            {
                "dropped": annotator,
                "precision": left["precision"]["value"],
                "miss": left["miss"]["value"],
                "relevant_per_query": left["relevant_per_query"]["value"],
                "kappa_margin": None if teacher is None or human is None else teacher - human,
                "breadth_disjoint": left.get("breadth_disjoint"),
            }
        )
    return rows


def hedge_by_breadth(queries: pd.DataFrame) -> dict:
    """Broad share among hedging and other queries, Fisher's exact test (WT §8; post hoc, reads no grade)."""
    hedge, broad = queries["hedge"].to_numpy(bool), (queries["breadth"] == "broad").to_numpy()
    table = binary_table(hedge, broad)
    (other_specific, other_broad), (hedge_specific, hedge_broad) = table.astype(int).tolist()
    defined = (table.sum(0) > 0).all() and (table.sum(1) > 0).all()
    return {
        "hedge": {"broad": hedge_broad, "queries": hedge_broad + hedge_specific},
        "no_hedge": {"broad": other_broad, "queries": other_broad + other_specific},
        "p": float(fisher_exact(table).pvalue) if defined else None,
    }


def analyse_relevance(study: Study, *, without_breadth: bool = False, partial: bool = False) -> dict:
    """All that the plan names, as one JSON-able dict.

    Raises `BadInput` when judgements are missing (unless `partial`, which says how many), when the specific/broad
    classification was not frozen before the grades or leaves a query out (unless `without_breadth`), when there is
    nothing to analyse, or for a study on another scale.
    """
    if study.scale != "relevance":
        raise BadInput(
            f"this analysis is for the relevance scale, the study's is {study.scale}", where="audit analysis"
        )
    if study.judgements.empty:
        raise BadInput("no judgement has been given yet", where="audit analysis", todo="collect judgements first")
    if len(study.missing) and not partial:
        first = study.missing.iloc[0]
        raise BadInput(
            f"{len(study.missing)} judgements are missing, the first is {first.annotator}, query {first.query_id}, page {first.page_id}",
            where="audit analysis",
            todo="wait for them, or give --partial to analyse what there is",
        )
    split = not without_breadth
    if split:
        if not study.breadth_frozen:
            raise BadInput(
                "the specific/broad classification was not frozen before the grades",
                where="audit analysis",
                todo="give --without-breadth: the split cannot be reported for this study",
            )
        unlabelled = study.queries["query_id"][~study.queries["breadth"].isin(BREADTHS)].tolist()
        if unlabelled:
            raise BadInput(
                f"{len(unlabelled)} queries are neither specific nor broad, the first is {unlabelled[0]!r}",
                where="audit analysis",
                todo="give --without-breadth to leave the split out",
            )
    plan, frame = study.plan, with_decisions(study)
    table, pairs = annotator_table(frame, plan), pairings(frame)
    usable = _usable(frame)
    hedged = usable[usable["score"] == plan.hedge]
    curve = [Cut(operator=">=", value=float(value)) for value in sorted(usable["score"].unique())]
    result = {
        "what": "relevance",
        "simulated": study.simulated,
        "study_id": study.study_id,
        "partial": bool(len(study.missing)),
        "missing": len(study.missing),
        "counts": {
            "annotators": len(study.annotators),
            "queries": len(study.queries),
            "pages": len(study.pairs),
            "judgements": len(frame),
            "cannot_judge": int((~frame["judged"]).sum()),
            "rated_judgements": len(usable),
        },
        "headline": headline(frame, study.pairs, plan, split=split),
        "annotators": table.to_dict("records"),
        "pairings": pairs.drop(columns="tables").to_dict("records"),
        "leave_one_out": _leave_one_out(frame, study.pairs, plan, split=split)
        if table["annotator"].nunique() > 2
        else [],
        "thresholds": [
            {"cut": cut.label, "precision": precision(frame, plan, cut), "miss": miss(frame, plan, cut)}
            for cut in plan.cuts
        ],
        "curve": [
            {"cut": cut.value, "precision": precision(frame, plan, cut), "miss": miss(frame, plan, cut)}
            for cut in curve
        ],
        "hedge": {**_share(hedged, plan), "pairs": len(hedged)},
        "post_hoc": {"hedge_by_breadth": hedge_by_breadth(study.queries)} if split else {},
    }
    return dict(_undefined_as_none(result))


def _undefined_as_none(value: Any) -> Any:
    """The same data with None for every NaN, which JSON has no word for."""
    if isinstance(value, dict):
        return {name: _undefined_as_none(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_undefined_as_none(part) for part in value]
    return None if isinstance(value, float) and np.isnan(value) else value


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write an analysis as JSON; a figure that is undefined (NaN or None) is null."""
    text = json.dumps(_undefined_as_none(result), ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
