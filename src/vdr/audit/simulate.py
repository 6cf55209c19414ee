"""*Simulated* annotators: grades drawn from the known truth with a stated strictness and error, for a corpus nobody
has graded.

Nothing here is a human judgement. Every file and figure made from it says *simulated*. Its use: to run the whole
study where no annotators are, and to show that the analysis finds the error rates that were put in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from vdr.audit.analysis import _teacher_kappa, miss, precision, relevant_per_query, with_decisions
from vdr.audit.design import Design
from vdr.audit.journal import Journal
from vdr.audit.judgements import JUDGEMENT_COLUMNS, Study, _join
from vdr.audit.plan import Plan
from vdr.audit.scales import CANNOT_JUDGE, TIERS, scale_named
from vdr.audit.study import Frozen
from vdr.errors import BadInput

__all__ = [
    "SimulatedAnnotator",
    "annotator_recovery",
    "draw_annotators",
    "expected_figures",
    "grade_design",
    "recovery",
    "write_simulated_journals",
]

Truth = Callable[[str, str], int]
RELEVANT_GRADE = 2


@dataclass(frozen=True)
class SimulatedAnnotator:
    """How a *simulated* annotator turns a true grade 0–3 into an answer.

    strictness in [-1, 1]: with this probability a true 2 is taken for a 1 (positive), or with its negative a true 1
    for a 2. error in [0, 0.5]: probability that the binary decision is then turned round. cannot_judge: probability
    of x. seconds: median of a log-normal time per judgement.
    """

    name: str
    strictness: float = 0.0
    error: float = 0.05
    cannot_judge: float = 0.05
    seconds: float = 29.0

    def __post_init__(self) -> None:
        if not (
            -1 <= self.strictness <= 1 and 0 <= self.error <= 0.5 and 0 <= self.cannot_judge < 1 and self.seconds > 0
        ):
            raise BadInput(f"simulated annotator {self.name}: a rate out of range", where="audit settings, simulated")

    def p_relevant(self, truth: np.ndarray) -> np.ndarray:
        """Probability of a grade ≥ 2 given the true grade, x aside. truth [N] → [N]."""
        truth = np.asarray(truth)
        base = (truth >= RELEVANT_GRADE).astype(float)
        base = np.where(truth == RELEVANT_GRADE, 1 - max(self.strictness, 0.0), base)
        base = np.where(truth == RELEVANT_GRADE - 1, max(-self.strictness, 0.0), base)
        return base * (1 - self.error) + (1 - base) * self.error

    def grades(self, truth: np.ndarray, rng: np.random.Generator) -> list[str]:
        """Answers on the relevance scale for true grades [N]."""
        truth = np.asarray(truth, int)
        yes = rng.random(len(truth)) < self.p_relevant(truth)
        grade = np.where(yes, np.maximum(truth, RELEVANT_GRADE), np.minimum(truth, RELEVANT_GRADE - 1))
        unsure = rng.random(len(truth)) < self.cannot_judge
        return [CANNOT_JUDGE if x else str(int(g)) for g, x in zip(grade, unsure, strict=True)]

    def labels(self, truth: np.ndarray, rng: np.random.Generator) -> list[str]:
        """Answers on the evidence scale: 3 is full, 2 partial, below none; an error moves the label by one step."""
        place = np.select([np.asarray(truth) >= 3, np.asarray(truth) == 2], [0, 1], default=2)
        step = np.where(place == 0, 1, np.where(place == 2, -1, rng.choice([-1, 1], size=len(place))))
        moved = np.where(rng.random(len(place)) < self.error, place + step, place)
        return [TIERS[int(index)] for index in moved]

    def times(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return np.round(rng.lognormal(np.log(self.seconds), 0.5, size=n), 2)


def draw_annotators(
    names: Sequence[str],
    *,
    strictness: tuple[float, float],
    error: tuple[float, float],
    cannot_judge: tuple[float, float],
    seconds: tuple[float, float],
    seed: int,
) -> list[SimulatedAnnotator]:
    """One *simulated* annotator per name, each rate drawn evenly from its range."""
    rng = np.random.default_rng(seed)
    return [
        SimulatedAnnotator(
            name,
            float(np.round(rng.uniform(*strictness), 3)),
            float(np.round(rng.uniform(*error), 3)),
            float(np.round(rng.uniform(*cannot_judge), 3)),
            float(np.round(rng.uniform(*seconds), 1)),
        )
        for name in names
    ]


def _answers(
    scale: str, annotator: SimulatedAnnotator, truth: np.ndarray, rng: np.random.Generator
) -> tuple[list[str], np.ndarray]:
    given = annotator.grades(truth, rng) if scale == "relevance" else annotator.labels(truth, rng)
    return given, annotator.times(len(given), rng)


def grade_design(
    design: Design, truth: Truth, annotators: Sequence[SimulatedAnnotator], plan: Plan, *, seed: int
) -> Study:
    """Let *simulated* annotators grade a design in memory (no files): for many repetitions."""
    rng = np.random.default_rng(seed)
    pairs = design.pairs.set_index("item")
    rows = []
    by_name = {annotator.name: annotator for annotator in annotators}
    for name, items in design.orders.items():
        shown = pairs.loc[items]
        grades = np.array([truth(q, p) for q, p in zip(shown["query_id"], shown["page_id"], strict=True)])
        given, seconds = _answers(design.scale, by_name[name], grades, rng)
        rows += list(zip([name] * len(items), shown["query_id"], shown["page_id"], given, seconds, strict=True))
    table = pd.DataFrame(rows, columns=list(JUDGEMENT_COLUMNS))
    frozen = bool((design.queries["breadth"] != "").all())
    joined = _join(table, design.pairs, design.queries)
    return Study(
        design.kind,
        design.scale,
        plan,
        design.pairs,
        design.queries,
        joined,
        list(design.orders),
        True,
        "simulated",
        frozen,
    )


def write_simulated_journals(
    frozen: Frozen, truth: Truth, annotators: Sequence[SimulatedAnnotator], *, seed: int
) -> None:
    """Fill a frozen study's journals with *simulated* judgements, through the same journal the server writes.

    Raises `BadInput` when the study is not marked simulated or has judgements already.
    """
    if not frozen.simulated:
        raise BadInput("the study is for people, not for simulated annotators", where=frozen.path)
    folder = frozen.path / "judgements"
    if any(folder.glob("*.jsonl")):
        raise BadInput("judgements exist already", where=folder)
    rng = np.random.default_rng(seed)
    pairs = frozen.pairs.set_index("item")
    by_name = {annotator.name: annotator for annotator in annotators}
    scale = scale_named(frozen.manifest["scale"])
    for name, items in frozen.orders.items():
        shown = pairs.loc[items]
        grades = np.array([truth(q, p) for q, p in zip(shown["query_id"], shown["page_id"], strict=True)])
        given, seconds = _answers(scale.name, by_name[name], grades, rng)
        journal = Journal(
            folder / f"{name}.jsonl",
            study_id=frozen.study_id,
            annotator=name,
            items=items,
            grades=scale.values,
            clock=lambda: "simulated",
        )
        journal.consent()
        for item, grade, time in zip(items, given, seconds, strict=True):
            journal.judge(item, grade, float(time), revision=0)


def _mean_p(annotators: Sequence[SimulatedAnnotator], truth: np.ndarray) -> np.ndarray:
    """Probability that a judgement (not x) of a page is relevant, over the annotators; x is rarer for some: weighted.
    [N] → [N]."""
    weights = np.array([1 - a.cannot_judge for a in annotators])
    return (weights[:, None] * np.stack([a.p_relevant(truth) for a in annotators])).sum(0) / weights.sum()


def expected_figures(
    pool: pd.DataFrame,
    truth: Truth,
    annotators: Sequence[SimulatedAnnotator],
    plan: Plan,
    *,
    labelled_share: float,
    top: int,
) -> dict[str, float]:
    """What the headline figures are in the whole query-complete pool, given the truth and the annotators' rates.

    `pool` as from `query_complete`. The last rank is shown only for queries without their labelled page, so it weighs
    1 − labelled_share. These are the *given* values that a study's intervals should contain.
    """
    mined = pool[pool["rank"] > 0]
    grades = np.array([truth(q, p) for q, p in zip(mined["query_id"], mined["page_id"], strict=True)])
    p = _mean_p(annotators, grades)
    weight = np.where(mined["rank"] == top, 1 - labelled_share, 1.0)
    protected = plan.base_cut.protects(mined["score"].to_numpy(float))

    def mean(mask: np.ndarray) -> float:
        return float((weight * p)[mask].sum() / weight[mask].sum()) if mask.any() else float("nan")

    # A view counts only without an x among its pages, so annotators who say x often weigh less.
    views = np.array([(1 - a.cannot_judge) ** top for a in annotators])
    view_p = (views[:, None] * np.stack([a.p_relevant(grades) for a in annotators])).sum(0) / views.sum()
    total = weight.sum()
    yes_teacher, yes_human = (weight * protected).sum() / total, (weight * p).sum() / total
    observed = (weight * np.where(protected, p, 1 - p)).sum() / total
    chance = yes_teacher * yes_human + (1 - yes_teacher) * (1 - yes_human)
    return {
        "precision": mean(protected),
        "miss": mean(~protected),
        "relevant_per_query": float(view_p.sum() / mined["query_id"].nunique()),
        "teacher_human_kappa": float((observed - chance) / (1 - chance)) if chance < 1 else float("nan"),
    }


def recovery(study: Study, given: Mapping[str, float]) -> list[dict]:
    """Each given value beside the *simulated* study's figure and interval: was it recovered?"""
    frame = with_decisions(study)
    found = {
        "precision": precision(frame, study.plan),
        "miss": miss(frame, study.plan),
        "relevant_per_query": relevant_per_query(frame, study.pairs, study.plan),
        "teacher_human_kappa": _teacher_kappa(frame, study.plan),
    }
    rows = []
    for name, value in given.items():
        figure = found[name]
        inside = figure["low"] is not None and figure["low"] <= value <= figure["high"]
        rows.append(
            {
                "figure": name,
                "given": value,
                **{k: figure[k] for k in ("value", "low", "high", "n")},
                "inside": bool(inside),
            }
        )
    return rows


def annotator_recovery(study: Study, truth: Truth, annotators: Sequence[SimulatedAnnotator]) -> list[dict]:
    """Per *simulated* annotator: given and found rate of calling irrelevant pages relevant and the reverse, Wilson
    intervals."""
    frame = with_decisions(study)
    frame = frame[frame["judged"]].copy()
    frame["truth"] = [truth(q, p) for q, p in zip(frame["query_id"], frame["page_id"], strict=True)]
    rows = []
    for annotator in annotators:
        own = frame[frame["annotator"] == annotator.name]
        for name, part in (
            ("false relevant", own[own["truth"] < RELEVANT_GRADE]),
            ("false irrelevant", own[own["truth"] >= RELEVANT_GRADE]),
        ):
            if part.empty:
                continue
            p = annotator.p_relevant(part["truth"].to_numpy())
            expected = float(p.mean() if name == "false relevant" else (1 - p).mean())
            wrong = part["relevant"].sum() if name == "false relevant" else (~part["relevant"]).sum()
            low, high = proportion_confint(int(wrong), len(part), alpha=1 - study.plan.interval, method="wilson")
            rows.append(
                {
                    "annotator": annotator.name,
                    "rate": name,
                    "given": expected,
                    "value": float(wrong / len(part)),
                    "low": float(low),
                    "high": float(high),
                    "n": len(part),
                    "inside": bool(low <= expected <= high),
                }
            )
    return rows
