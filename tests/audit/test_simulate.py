"""The *simulated* study finds the rates it was given."""

from __future__ import annotations

import zlib

import numpy as np
import pandas as pd
import pytest

from vdr.audit.analysis import analyse_relevance
from vdr.audit.design import design_ring, design_tiers
from vdr.audit.evidence import analyse_evidence
from vdr.audit.plan import Plan, load_plan
from vdr.audit.sampling import Sizes, query_complete
from vdr.audit.simulate import (
    SimulatedAnnotator,
    annotator_recovery,
    draw_annotators,
    expected_figures,
    grade_design,
    recovery,
)
from vdr.errors import BadInput

NAMES = [f"v{i + 1:02d}" for i in range(10)]
QUICK: Plan = load_plan().model_copy(update={"resamples": 400})


def truth(query: str, page: str) -> int:
    """A fixed arbitrary truth: some queries have many relevant pages, some none."""
    ease = zlib.crc32(query.encode()) % 100
    draw = zlib.crc32(f"{query}|{page}".encode()) % 100
    return (3 if draw % 2 else 2) if draw < ease else draw % 2


def teacher(queries: int = 400, seed: int = 1, false_yes: float = 0.2, false_no: float = 0.1) -> pd.DataFrame:
    """A *simulated* teacher's ratings of labelled page and ranks 1–4, with known error rates."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(queries):
        for rank in range(5):
            query, page = f"q{q}", f"p{q}-{rank}"
            relevant = truth(query, page) >= 2
            says = rng.random() < (1 - false_no if relevant else false_yes)
            rows.append((query, page, rank, float(rng.choice([0.5, 0.8, 1.0] if says else [0.0, 0.2]))))
    return pd.DataFrame(rows, columns=["query_id", "page_id", "rank", "score"])


SCORED = teacher()
POOL = query_complete(SCORED, top=4)
TEXTS = {query: query for query in SCORED["query_id"]}
BREADTH = {query: "broad" if int(query[1:]) % 3 == 0 else "specific" for query in TEXTS}


def study(seed: int, annotators: list[SimulatedAnnotator], plan: Plan = QUICK):
    design = design_ring(SCORED, TEXTS, Sizes(), seed=seed, breadth=BREADTH)
    return grade_design(design, truth, annotators, plan, seed=1000 + seed)


def test_perfect_annotators_give_the_teachers_own_rates():
    """Without annotator error, precision and miss are the teacher's: computed here directly from truth and ratings."""
    annotators = [SimulatedAnnotator(name, error=0.0, cannot_judge=0.0) for name in NAMES]
    given = expected_figures(POOL, truth, annotators, QUICK, labelled_share=0.0, top=4)
    mined = POOL[POOL["rank"] > 0]
    relevant = np.array([truth(q, p) >= 2 for q, p in zip(mined["query_id"], mined["page_id"], strict=True)])
    protected = mined["score"].to_numpy() >= 0.5
    assert given["precision"] == pytest.approx(relevant[protected].mean())
    assert given["miss"] == pytest.approx(relevant[~protected].mean())
    assert given["relevant_per_query"] == pytest.approx(4 * relevant.mean())
    rows = {row["figure"]: row for row in recovery(study(0, annotators), given)}
    assert rows["precision"]["inside"]
    assert rows["miss"]["inside"]


def test_intervals_contain_the_given_values_as_often_as_they_say():
    """Forty simulated studies: each figure's 95 % interval holds the given value in most of them."""
    annotators = draw_annotators(
        NAMES, strictness=(-0.35, 0.45), error=(0.02, 0.12), cannot_judge=(0.0, 0.15), seconds=(8, 41), seed=5
    )
    given = expected_figures(POOL, truth, annotators, QUICK, labelled_share=0.4, top=4)
    hits = dict.fromkeys(given, 0)
    for seed in range(40):
        for row in recovery(study(seed, annotators), given):
            hits[row["figure"]] += row["inside"]
    # A 95 % interval misses in 2 of 40 on average; nine misses (31 hits) would have a probability below 1 in 5,000.
    assert min(hits.values()) >= 32, hits


def test_annotators_own_error_rates_are_recovered():
    annotators = draw_annotators(
        NAMES, strictness=(-0.35, 0.45), error=(0.02, 0.12), cannot_judge=(0.0, 0.15), seconds=(8, 41), seed=5
    )
    rows = [row for seed in range(5) for row in annotator_recovery(study(seed, annotators), truth, annotators)]
    assert len(rows) == 100
    assert np.mean([row["inside"] for row in rows]) >= 0.88
    assert {row["annotator"] for row in rows} == set(NAMES)


def test_a_wrong_rate_is_not_recovered():
    """The check can fail: annotators twice as wrong as stated fall outside."""
    honest = [SimulatedAnnotator(name, error=0.02, cannot_judge=0.0) for name in NAMES]
    wrong = [SimulatedAnnotator(name, error=0.4, cannot_judge=0.0) for name in NAMES]
    given = expected_figures(POOL, truth, honest, QUICK, labelled_share=0.4, top=4)
    rows = {row["figure"]: row for row in recovery(study(0, wrong), given)}
    assert not rows["precision"]["inside"]
    assert not rows["teacher_human_kappa"]["inside"]


def test_strictness_shows_in_the_relevant_share():
    strict = SimulatedAnnotator("v01", strictness=1.0, error=0.0, cannot_judge=0.0)
    lenient = SimulatedAnnotator("v02", strictness=-1.0, error=0.0, cannot_judge=0.0)
    assert strict.p_relevant(np.array([0, 1, 2, 3])).tolist() == [0, 0, 0, 1]
    assert lenient.p_relevant(np.array([0, 1, 2, 3])).tolist() == [0, 1, 1, 1]
    with pytest.raises(BadInput, match="out of range"):
        SimulatedAnnotator("v03", error=0.7)


def test_whole_analysis_says_simulated():
    annotators = [SimulatedAnnotator(name) for name in NAMES]
    result = analyse_relevance(study(0, annotators))
    assert result["simulated"] is True
    assert result["counts"]["judgements"] == 400
    assert len(result["pairings"]) == 10
    assert {row["n"] for row in result["pairings"]} <= set(range(10, 19))  # 18 shared mined pages, less those with an x


def test_simulated_evidence_audit():
    rng = np.random.default_rng(0)
    tier_of = {3: "full", 2: "partial", 1: "none", 0: "none"}
    judged = SCORED[SCORED["rank"] > 0].copy()
    judged["tier"] = [tier_of[truth(q, p)] for q, p in zip(judged["query_id"], judged["page_id"], strict=True)]
    flip = rng.random(len(judged)) < 0.1
    judged.loc[flip, "tier"] = rng.choice(["full", "partial", "none"], size=int(flip.sum()))
    design = design_tiers(judged[["query_id", "page_id", "tier"]], TEXTS, per_tier=60, annotators=3, seed=0)
    annotators = [SimulatedAnnotator(name, error=0.05) for name in NAMES[:3]]
    result = analyse_evidence(grade_design(design, truth, annotators, QUICK, seed=1))
    assert [row["candidates"] for row in result["tiers"].values()] == [60, 60, 60]
    for row in result["tiers"].values():
        assert 0.75 < row["agreement"] <= 1.0
        assert sum(row["shares"].values()) == pytest.approx(1.0)
    assert 0.7 < result["fleiss_kappa"] < 1.0
