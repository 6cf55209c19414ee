"""The judge audit: majority label of three annotators by judge tier (EV §6.3, App. C, Table 6)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from vdr.audit.agreement import cohen, fleiss
from vdr.audit.judgements import Study
from vdr.audit.scales import TIERS
from vdr.errors import BadInput

__all__ = ["NO_MAJORITY", "analyse_evidence", "majority"]

NO_MAJORITY = "no majority"


def majority(labels: list[str]) -> str:
    """The label given by more than half; `no majority` otherwise.

    >>> majority(["full", "partial", "full"]), majority(["full", "partial", "none"])
    ('full', 'no majority')
    """
    for label in set(labels):
        if 2 * labels.count(label) > len(labels):
            return label
    return NO_MAJORITY


def analyse_evidence(study: Study, *, partial: bool = False) -> dict:
    """EV Table 6: per judge tier, the share of each majority label, over the candidates of that tier.

    Diagonal entries carry a Wilson interval. Fleiss' κ among annotators and Cohen's κ of judge against majority are
    added, as description. Candidates without all their judgements are left out and counted (`partial`); otherwise
    refused.
    """
    if study.scale != "evidence":
        raise BadInput(f"this analysis is for the evidence scale, the study's is {study.scale}", where="audit analysis")
    if len(study.missing) and not partial:
        raise BadInput(
            f"{len(study.missing)} judgements are missing",
            where="audit analysis",
            todo="wait for them, or give --partial",
        )
    wide = study.judgements.pivot(index=["query_id", "page_id"], columns="annotator", values="grade")
    wide = wide.reindex(columns=sorted(study.annotators)).dropna()
    if wide.empty:
        raise BadInput("no candidate has all its judgements", where="audit analysis", todo="collect judgements first")
    tier = study.pairs.set_index(["query_id", "page_id"])["tier"].reindex(wide.index)
    human = pd.Series([majority(list(row)) for row in wide.to_numpy()], index=wide.index)
    columns = [*TIERS, NO_MAJORITY]
    counts = pd.crosstab(tier, human).reindex(index=list(TIERS), columns=columns, fill_value=0)
    rows = {}
    for name in TIERS:
        total = int(counts.loc[name].sum())
        agree = int(counts.loc[name, name])
        low, high = (
            proportion_confint(agree, total, alpha=1 - study.plan.interval, method="wilson") if total else (None, None)
        )
        rows[name] = {
            "candidates": total,
            "counts": {column: int(counts.loc[name, column]) for column in columns},
            "shares": {column: float(counts.loc[name, column] / total) if total else None for column in columns},
            "agreement": agree / total if total else None,
            "low": None if low is None else float(low),
            "high": None if high is None else float(high),
        }
    decided = counts[list(TIERS)].to_numpy(float)
    codes = wide.replace({label: code for code, label in enumerate(TIERS)}).to_numpy().astype(int)
    return {
        "what": "evidence",
        "simulated": study.simulated,
        "study_id": study.study_id,
        "partial": bool(len(study.missing)),
        "missing": len(study.missing),
        "counts": {"annotators": len(study.annotators), "candidates": len(wide), "judgements": int(wide.size)},
        "tiers": rows,
        "fleiss_kappa": fleiss(codes),
        "judge_human_kappa": cohen(decided),
        "unanimous": float(np.mean([len(set(row)) == 1 for row in codes])),
    }
