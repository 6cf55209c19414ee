"""Judgements as tables: from a study's journals, or from released CSV files validated row by row.

The one table the analysis reads has a row per judgement: annotator, query_id, page_id, grade (as text), seconds,
role, rank, score, tier, breadth, hedge, block. `data_manifests/released_judgements.yaml` states the CSV files' columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from vdr.audit.journal import Journal
from vdr.audit.plan import Plan, load_plan
from vdr.audit.scales import TIERS, scale_named
from vdr.audit.study import BREADTHS, Frozen
from vdr.errors import BadInput
from vdr.textfiles import real_number, text_table, whole_number

__all__ = ["Problem", "Study", "load_released", "study_from_folder", "write_problems"]

JUDGEMENT_COLUMNS = ("annotator", "query_id", "page_id", "grade", "seconds")
#: What a hedge cell may say; blank is no.
HEDGED = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
PAIR_COLUMNS = ("query_id", "page_id", "role", "rank", "score")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one row: file, row (1-based, the header is row 0), field, what."""

    file: str
    row: int
    field: str
    what: str


@dataclass
class Study:
    """All that the analysis reads. `pairs` and `queries` as in `vdr.audit.design`; `judgements` has the joined
    columns."""

    kind: str
    scale: str
    plan: Plan
    pairs: pd.DataFrame
    queries: pd.DataFrame
    judgements: pd.DataFrame
    annotators: list[str]
    simulated: bool
    study_id: str
    breadth_frozen: bool
    missing: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["annotator", "query_id", "page_id"]))


def _join(judgements: pd.DataFrame, pairs: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    keep = ["query_id", "page_id", "role", "rank", "score", "tier"]
    joined = judgements.merge(pairs[keep], on=["query_id", "page_id"], how="left", validate="many_to_one")
    joined = joined.merge(
        queries[["query_id", "breadth", "hedge", "block"]], on="query_id", how="left", validate="many_to_one"
    )
    return joined.sort_values(["annotator", "query_id", "rank", "page_id"], kind="stable").reset_index(drop=True)


def study_from_folder(frozen: Frozen) -> Study:
    """Read every journal of a frozen study. Raises `DamagedArtefact` for a line of another study, annotator or item,
    `BadInput` for a journal of nobody in the study. Judgements not given yet stand in `missing`."""
    pairs = frozen.pairs.set_index("item")
    scale = scale_named(frozen.manifest["scale"])
    folder = frozen.path / "judgements"
    strangers = sorted({file.stem for file in folder.glob("*.jsonl")} - set(frozen.orders))
    if strangers:
        raise BadInput(f"{strangers[0]!r} is no annotator of this study", where=folder / f"{strangers[0]}.jsonl")
    rows, missing = [], []
    for annotator, items in frozen.orders.items():
        file = folder / f"{annotator}.jsonl"
        state = {}
        if file.exists():
            journal = Journal(
                file, study_id=frozen.study_id, annotator=annotator, items=items, grades=scale.values, mend=False
            )
            state = journal.state()
        for item in items:
            pair = pairs.loc[item]
            if item in state:
                rows.append((annotator, pair.query_id, pair.page_id, state[item].grade, state[item].seconds))
            else:
                missing.append((annotator, pair.query_id, pair.page_id))
    given = pd.DataFrame(rows, columns=list(JUDGEMENT_COLUMNS))
    return Study(
        frozen.manifest["kind"],
        scale.name,
        frozen.plan,
        frozen.pairs,
        frozen.queries,
        _join(given, frozen.pairs, frozen.queries),
        list(frozen.orders),
        frozen.simulated,
        frozen.study_id,
        bool(frozen.manifest["breadth_frozen"]),
        pd.DataFrame(missing, columns=["annotator", "query_id", "page_id"]),
    )


def _number(text: str) -> float:
    value = real_number(text)
    return float("nan") if value is None else value


def _check_pairs(pairs: pd.DataFrame, queries: pd.DataFrame, names: tuple[str, str], scale: str) -> list[Problem]:
    problems = []
    known, seen = set(queries["query_id"]), set()
    for row, pair in enumerate(pairs.itertuples(), 1):
        score = _number(pair.score)
        if pair.query_id not in known:
            problems.append(Problem(names[0], row, "query_id", f"query {pair.query_id!r} is not in {names[1]}"))
        if pair.role not in ("labelled", "mined"):
            problems.append(Problem(names[0], row, "role", f"{pair.role!r} is neither labelled nor mined"))
        if whole_number(pair.rank) is None:
            problems.append(Problem(names[0], row, "rank", f"{pair.rank!r} is no whole number"))
        if pair.score and not 0 <= score <= 1:
            problems.append(Problem(names[0], row, "score", f"{pair.score!r} is not in [0, 1]"))
        if scale == "evidence" and pair.tier not in TIERS:
            problems.append(Problem(names[0], row, "tier", f"{pair.tier!r} is not one of {', '.join(TIERS)}"))
        if (pair.query_id, pair.page_id) in seen:
            problems.append(
                Problem(names[0], row, "page_id", f"page {pair.page_id!r} of query {pair.query_id!r} stands twice")
            )
        seen.add((pair.query_id, pair.page_id))
    stated: set[str] = set()
    for row, query in enumerate(queries.itertuples(), 1):
        if query.query_id in stated:
            problems.append(Problem(names[1], row, "query_id", f"query {query.query_id!r} stands twice"))
        stated.add(query.query_id)
        if query.breadth not in ("", *BREADTHS):
            problems.append(Problem(names[1], row, "breadth", f"{query.breadth!r} is neither specific nor broad"))
        if getattr(query, "hedge", "").lower() not in HEDGED:
            problems.append(Problem(names[1], row, "hedge", f"{query.hedge!r} is none of {', '.join(filter(None, HEDGED))}"))
    return problems


def _check_judgements(
    judgements: pd.DataFrame, pairs: pd.DataFrame, grades: tuple[str, ...], annotators: set[str] | None, name: str
) -> list[Problem]:
    known = set(zip(pairs["query_id"], pairs["page_id"], strict=True))
    queries = set(pairs["query_id"])
    studies = sorted(set(judgements["study"])) if "study" in judgements else []
    problems = []
    if len(studies) > 1:
        first = int(np.argmax((judgements["study"] != judgements["study"].iloc[0]).to_numpy())) + 1
        problems.append(
            Problem(name, first, "study", f"judgements of {len(studies)} studies are mixed: {', '.join(studies)}")
        )
    seen: dict[tuple[str, str, str], int] = {}
    for row, given in enumerate(judgements.itertuples(), 1):
        key = (given.annotator, given.query_id, given.page_id)
        if not given.annotator or (annotators is not None and given.annotator not in annotators):
            problems.append(Problem(name, row, "annotator", f"unknown annotator {given.annotator!r}"))
        if given.query_id not in queries:
            problems.append(Problem(name, row, "query_id", f"unknown query {given.query_id!r}"))
        elif key[1:] not in known:
            problems.append(
                Problem(name, row, "page_id", f"page {given.page_id!r} was not shown for query {given.query_id!r}")
            )
        if given.grade not in grades:
            problems.append(Problem(name, row, "grade", f"unknown grade {given.grade!r}; known: {', '.join(grades)}"))
        if given.seconds and not 0 <= _number(given.seconds) <= 86400:
            problems.append(Problem(name, row, "seconds", f"{given.seconds!r} is no number of seconds from 0 to 86400"))
        if key in seen:
            problems.append(Problem(name, row, "page_id", f"the same judgement as row {seen[key]}"))
        seen.setdefault(key, row)
    return problems


def load_released(
    judgements: Path,
    pairs: Path,
    queries: Path,
    *,
    scale: str = "relevance",
    plan_text: str | None = None,
    simulated: bool = False,
    breadth_frozen: bool = True,
    annotators: list[str] | None = None,
) -> tuple[Study, list[Problem]]:
    """Read a released study from three CSV files. Returns the study and the list of problems; with problems, do not
    analyse.

    `annotators` restricts who may appear; without it, whoever appears is one. Missing judgements (an annotator graded
    part of a query's pages) stand in `study.missing`. Raises `BadInput` for an unreadable file or a missing column.
    """
    grades = scale_named(scale).values
    pair_columns = (*PAIR_COLUMNS, "tier") if scale == "evidence" else PAIR_COLUMNS
    given, shown, asked = (
        text_table(judgements, JUDGEMENT_COLUMNS),
        text_table(pairs, pair_columns),
        text_table(queries, ("query_id", "breadth")),
    )
    if "tier" not in shown:
        shown["tier"] = ""
    problems = _check_pairs(shown, asked, (Path(pairs).name, Path(queries).name), scale)
    problems += _check_judgements(given, shown, grades, set(annotators) if annotators else None, Path(judgements).name)
    shown["score"] = [_number(text) for text in shown["score"]]
    shown["rank"] = [-1 if (rank := whole_number(text)) is None else rank for text in shown["rank"]]
    given["seconds"] = [_number(text) for text in given["seconds"]]
    plan = load_plan(plan_text)
    if "hedge" in asked:
        asked["hedge"] = [HEDGED.get(text.lower(), False) for text in asked["hedge"]]
    else:
        hedged = shown["query_id"][(shown["role"] == "mined") & (shown["score"] == plan.hedge)]
        asked["hedge"] = asked["query_id"].isin(hedged)
    for column, value in (("block", -1), ("query", "")):
        if column not in asked:
            asked[column] = value
    names = sorted(set(given["annotator"])) if annotators is None else list(annotators)
    study = Study(
        "released", scale, plan, shown, asked, pd.DataFrame(), names, simulated, "released", breadth_frozen
    )  # fmt: skip
    if not problems:
        columns = list(JUDGEMENT_COLUMNS)
        study.judgements = _join(given[columns], shown, asked)
        views = given[["annotator", "query_id"]].drop_duplicates()
        expected = views.merge(shown[["query_id", "page_id"]], on="query_id")
        marked = expected.merge(given[columns[:3]], how="left", indicator=True)
        study.missing = marked.loc[marked["_merge"] == "left_only", columns[:3]].reset_index(drop=True)
    return study, problems


def write_problems(problems: list[Problem], path: Path) -> None:
    """The full list as CSV (file, row, field, what)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([vars(problem) for problem in problems], columns=["file", "row", "field", "what"]).to_csv(
        path, index=False
    )
