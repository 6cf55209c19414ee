"""The audit as a stage of the study: from corpus, scored pool and ratings to a *simulated* audit's results.

People's judgements cannot be made by a program. Where the truth is known (the miniature's drawn corpus), *simulated*
annotators stand in, and every result says so; with people, `vdr audit design` makes the same study from the same
artefacts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.audit.analysis import analyse_relevance, write_result
from vdr.audit.design import Design, PageSource, annotator_names, design_ring, design_tiers, pairs_from_artefacts
from vdr.audit.evidence import analyse_evidence
from vdr.audit.judgements import Study, study_from_folder
from vdr.audit.plan import Plan, default_plan_text, load_plan
from vdr.audit.sampling import Sizes, query_complete
from vdr.audit.scales import TIERS
from vdr.audit.simulate import (
    SimulatedAnnotator,
    Truth,
    annotator_recovery,
    draw_annotators,
    expected_figures,
    grade_design,
    recovery,
    write_simulated_journals,
)
from vdr.audit.study import freeze, write_study
from vdr.corpus.access import TrainCorpus, load_train
from vdr.errors import BadInput
from vdr.progress import track
from vdr.study.sections.audit import AuditSettings

__all__ = ["build_audit", "coverage", "design_for_people", "tiers_from_ratings"]

PARTIAL, FULL = 0.5, 0.9  # ratings from which a page counts as partial and as full evidence where no evidence judge ran
COVERAGE_RESAMPLES = 1000


def tiers_from_ratings(pairs: pd.DataFrame) -> pd.DataFrame:
    """Judge tiers cut from the teacher's ratings of mined candidates, for want of an evidence judge: full at ≥ 0.9,
    partial at ≥ 0.5, none below. Returns query_id, page_id, tier."""
    mined = pairs[(pairs["rank"] > 0) & pairs["score"].notna()].copy()
    score = mined["score"].to_numpy(float)
    mined["tier"] = np.select([score >= FULL, score >= PARTIAL], TIERS[:2], default=TIERS[2])
    return mined[["query_id", "page_id", "tier"]].reset_index(drop=True)


def _inputs(
    corpus: Path, scored: Path, ratings: Path
) -> tuple[TrainCorpus, pd.DataFrame, dict[str, str], dict[str, str]]:
    train = load_train(corpus)
    pairs = pairs_from_artefacts(
        pd.read_parquet(Path(scored) / "scored_pool.parquet"), pd.read_parquet(Path(ratings) / "ratings.parquet")
    )
    ids = train.rows["row_id"].astype(str)
    texts = dict(zip(ids, train.rows["query"], strict=True))
    breadth = dict(zip(ids, train.rows["breadth"].fillna(""), strict=True)) if "breadth" in train.rows else {}
    return train, pairs, texts, breadth


def _source(train: TrainCorpus) -> PageSource:
    return lambda page_id: train.pages.image(train.pages.index(page_id))


def _sizes(settings: AuditSettings) -> Sizes:
    return Sizes(settings.queries, settings.with_labelled, settings.pages_per_query, settings.annotators)


def design_for_people(
    settings: AuditSettings, *, corpus: Path, scored: Path, ratings: Path, judged: pd.DataFrame | None = None
) -> tuple[Design, PageSource]:
    """The study of a profile for people: WT's ring, or EV's tiers where a judge's tiers are given.

    The specific/broad column is left open, since a person has to fill it in without seeing ratings.
    """
    train, pairs, texts, _ = _inputs(corpus, scored, ratings)
    if judged is not None:
        evidence = settings.evidence
        made = design_tiers(
            judged, texts, per_tier=evidence.per_tier, annotators=evidence.annotators, seed=settings.seed
        )
    else:
        made = design_ring(pairs, texts, _sizes(settings), seed=settings.seed, hedge=load_plan().hedge)
    return made, _source(train)


def _truth(train: TrainCorpus) -> Truth:
    grades = train.truth()
    if grades is None:
        raise BadInput(
            "the corpus has no known truth, so annotators cannot be simulated",
            where=train.path,
            todo="make a study for people with `vdr audit design`",
        )
    row = {str(row_id): place for place, row_id in enumerate(train.rows["row_id"])}
    return lambda query, page: int(grades[row[query], train.pages.index(page)])


def coverage(
    pairs: pd.DataFrame,
    texts: Mapping[str, str],
    truth: Truth,
    annotators: list[SimulatedAnnotator],
    settings: AuditSettings,
    given: Mapping[str, float],
    plan: Plan,
) -> pd.DataFrame:
    """Repeat the *simulated* study with new draws and count how often each interval holds the given value.

    Returns figure, given, repeats, inside, share, and the mean of the estimates.
    """
    quick = plan.model_copy(update={"resamples": min(plan.resamples, COVERAGE_RESAMPLES)})
    rows: list[dict[str, Any]] = []
    pairs = pairs[pairs["rank"] <= settings.pages_per_query]  # deeper ranks are never drawn
    for repeat in track(range(settings.simulated.repeats), label="simulated studies", unit="studies"):
        seed = settings.seed + 1 + repeat
        design = design_ring(pairs, texts, _sizes(settings), seed=seed, hedge=plan.hedge)
        rows += recovery(grade_design(design, truth, annotators, quick, seed=seed), given)
    table = pd.DataFrame(rows, columns=["figure", "given", "value", "low", "high", "n", "inside"])
    grouped = table.groupby("figure", sort=False)
    return grouped.agg(
        given=("given", "first"), mean=("value", "mean"), repeats=("inside", "size"), inside=("inside", "sum"),
        share=("inside", "mean"),
    ).reset_index()  # fmt: skip


def _simulated_study(
    folder: Path,
    design: Design,
    train: TrainCorpus,
    truth: Truth,
    annotators: list[SimulatedAnnotator],
    seed: int,
    title: str,
) -> Study:
    write_study(folder, design, _source(train), title=title, simulated=True)
    frozen = freeze(folder, without_breadth=not (design.queries["breadth"] != "").all(), at="simulated")
    write_simulated_journals(frozen, truth, annotators, seed=seed)
    return study_from_folder(frozen)


def build_audit(
    out: Path,
    measures: dict[str, Any],
    settings: AuditSettings,
    *,
    corpus: Path,
    scored: Path,
    ratings: Path,
    judged: pd.DataFrame | None = None,
) -> None:
    """Design both studies, let *simulated* annotators grade them, analyse, and check the analysis against what was
    put in.

    Writes study/ (WT's ring) and evidence/ (EV's tiers) as folders that `vdr audit check` reads, analysis.json,
    evidence.json, simulated_annotators.csv (rates put in), recovery.csv, annotator_recovery.csv, coverage.csv,
    plan.yaml. `judged` are an evidence judge's tiers; without them the tiers are cut from the ratings, and
    evidence.json says so. Raises `BadInput` where the corpus has no truth or the pool is too small for the sizes.
    """
    train, pairs, texts, breadth = _inputs(corpus, scored, ratings)
    truth, plan, sizes = _truth(train), load_plan(), _sizes(settings)
    simulated = settings.simulated
    annotators = draw_annotators(
        annotator_names(settings.annotators),
        strictness=simulated.strictness,
        error=simulated.error,
        cannot_judge=simulated.cannot_judge,
        seconds=simulated.seconds,
        seed=simulated.seed,
    )
    pd.DataFrame([vars(a) for a in annotators]).to_csv(out / "simulated_annotators.csv", index=False)
    (out / "plan.yaml").write_text(default_plan_text(), encoding="utf-8")

    design = design_ring(pairs, texts, sizes, seed=settings.seed, hedge=plan.hedge, breadth=breadth)
    study = _simulated_study(
        out / "study", design, train, truth, annotators, simulated.seed, "Page judgements (simulated)"
    )
    without_breadth = not study.breadth_frozen
    result = analyse_relevance(study, without_breadth=without_breadth)
    pool = query_complete(pairs, top=settings.pages_per_query, hedge=plan.hedge)
    share = settings.with_labelled / settings.queries
    given = expected_figures(pool, truth, annotators, plan, labelled_share=share, top=settings.pages_per_query)
    perfect = [SimulatedAnnotator(a.name, error=0.0, cannot_judge=0.0) for a in annotators]
    result["teacher_against_truth"] = expected_figures(
        pool, truth, perfect, plan, labelled_share=0.0, top=settings.pages_per_query
    )
    result["design"] = {**design.notes, "seed": settings.seed}
    write_result(out / "analysis.json", result)
    pd.DataFrame(recovery(study, given)).to_csv(out / "recovery.csv", index=False)
    pd.DataFrame(annotator_recovery(study, truth, annotators)).to_csv(out / "annotator_recovery.csv", index=False)
    coverage(pairs, texts, truth, annotators, settings, given, plan).to_csv(out / "coverage.csv", index=False)

    tiers = tiers_from_ratings(pairs) if judged is None else judged
    evidence = design_tiers(
        tiers, texts, per_tier=settings.evidence.per_tier, annotators=settings.evidence.annotators, seed=settings.seed
    )
    graders = annotators[: settings.evidence.annotators]
    graded = _simulated_study(out / "evidence", evidence, train, truth, graders, simulated.seed, "Evidence (simulated)")
    audited = analyse_evidence(graded)
    audited["judge"] = (
        "an evidence judge" if judged is not None else f"tiers cut from the teacher's ratings at {PARTIAL} and {FULL}"
    )
    write_result(out / "evidence.json", audited)
    measures["simulated"] = True
    measures["judgements"] = len(study.judgements) + len(graded.judgements)
    measures["precision_of_protection"] = result["headline"]["precision"]["value"]
    measures["miss_rate"] = result["headline"]["miss"]["value"]
