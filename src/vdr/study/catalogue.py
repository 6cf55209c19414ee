"""Arms, recipes, suites, tables and claims: declared once in YAML, read here, and everything else derived from them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from vdr.errors import BadInput, did_you_mean
from vdr.study.base import Section
from vdr.study.sections.training import ArmLosses, RecipeSettings
from vdr.study.yaml_io import explain, read_yaml

__all__ = [
    "Arm",
    "Catalogue",
    "Claim",
    "ClaimCheck",
    "NegativesByRank",
    "NegativesByScore",
    "NegativesByTeacher",
    "NegativesMatched",
    "Recipe",
    "Suite",
    "Table",
    "Targets",
    "load_arms",
    "load_claims",
    "load_recipes",
    "load_suites",
    "load_tables",
]

STUDY = Path(__file__).parent
Recipe = RecipeSettings


class NegativesByTeacher(Section):
    """The highest-ranked scored candidates that the teacher rates below a cut (WT §3)."""

    rule: Literal["teacher"]
    count: int = Field(4, ge=1, description="negatives of a query")
    below: float = Field(0.5, ge=0, le=1, description="a candidate qualifies when its rating is below this")
    backfill: Literal["lowest_rated", "none"] = Field("lowest_rated", description="what fills the gap when too few qualify")


class NegativesByRank(Section):
    """Candidates evenly spaced over a fixed window of retriever ranks (WT §5); the labelled page has no rank."""

    rule: Literal["ranks"]
    count: int = Field(4, ge=1)
    first: int = Field(ge=1, description="first rank of the window")
    last: int = Field(ge=1, description="last rank of the window, included")

    @model_validator(mode="after")
    def _window(self) -> NegativesByRank:
        if self.last - self.first + 1 < self.count:
            raise ValueError(f"ranks {self.first}-{self.last} hold fewer than {self.count} candidates")
        return self


class NegativesByScore(Section):
    """TopK-PercPos (WT §5): the highest-ranked candidates whose miner score is below alpha times the labelled page's."""

    rule: Literal["perc"]
    count: int = Field(4, ge=1)
    alpha: float = Field(gt=0, le=1)


class NegativesMatched(Section):
    """TopK-PercPos at the alpha whose rejection rate equals that of another arm's rule (WT §5)."""

    rule: Literal["perc_matched"]
    count: int = Field(4, ge=1)
    match: str = Field(description="the arm whose rejection rate is matched")


Negatives = Annotated[
    NegativesByTeacher | NegativesByRank | NegativesByScore | NegativesMatched, Field(discriminator="rule")
]


class Targets(Section):
    """S's candidates (one per quartile of the scored pool) and what is distilled over them (WT §3, §7)."""

    rule: Literal["ratings", "flat", "masked", "partition"]
    count: int = Field(4, ge=2, description="candidates of a query")
    threshold: float = Field(0.5, ge=0, le=1, description="rated relevant from here on (the partition's cut)")


class Arm(Section):
    """One kind of student: which supervision its rows carry, and which losses read it."""

    name: str
    title: str = Field(description="a few words for a table's row")
    summary: str = Field(description="one sentence for a reader")
    source: str = Field(description="section of the paper")
    baseline: str = Field("baseline", description="the arm that its changes are counted against, seed by seed")
    negatives: Negatives | None = None
    targets: Targets | None = None
    maps: bool = Field(False, description="rows carry the teacher's attention maps")
    descriptions: bool = Field(False, description="rows carry the teacher's description of the labelled page")
    ratings: Literal["teacher", "oracle"] = Field(
        "teacher", description="whose ratings its rules read; `oracle` (the truth) is a named comparison, never the teacher"
    )
    losses: ArmLosses = Field(default_factory=ArmLosses, description="its losses, each with weight and temperature")

    @model_validator(mode="after")
    def _one_candidate_signal(self) -> Arm:
        if self.ratings == "oracle" and not self.uses_ratings:
            raise ValueError("ratings: oracle belongs to an arm whose rules read ratings")
        return self

    @property
    def uses_ratings(self) -> bool:
        """Whether the arm's rows need ratings."""
        by_rule = self.negatives is not None and self.negatives.rule in ("teacher", "perc_matched")
        by_target = self.targets is not None  # also a flat target: its candidates come from the scored pool
        return by_rule or by_target

    @property
    def needs_pools(self) -> bool:
        """Whether the arm's rows need mined candidates."""
        return self.negatives is not None or self.targets is not None

    @property
    def supervision(self) -> dict[str, Any]:
        """What the arm's rows depend on, as plain data for the key of the rows artefact (names and losses left out)."""
        return self.model_dump(mode="json", include={"negatives", "targets", "maps", "descriptions", "ratings"})


class Suite(Section):
    """A group of evaluation data sets that a paper reports as one column."""

    name: str
    title: str
    paper_suite: str = Field(description="the paper's suite that this one stands for, as the reference files name it")
    in_domain: bool = Field(description="whether training pages come from the same collections")
    in_domain_datasets: tuple[str, ...] = Field((), description="data sets with a training split in the corpus, if not all")
    summary: str = ""


class Table(Section):
    """A table or figure of a paper: which runs it needs and which notebook makes it."""

    name: str
    paper: Literal["WT", "EV"]
    number: str = Field(description="the paper's number")
    kind: Literal["table", "figure"] = "table"
    title: str
    arms: tuple[str, ...] = ()
    baseline: str = "baseline"
    recipe: str | None = Field(None, description="the recipe of its runs; the profile's primary recipe if not given")
    suites: tuple[str, ...] = Field((), description="columns; the profile's suites if not given")
    reference: str | None = Field(None, description="the paper's figures, by name in outputs/recorded/reference")
    notebook: str | None = Field(None, description="the notebook that makes it, in notebooks/")
    command: str | None = Field(None, description="the `vdr` command that makes it where no notebook does")
    parameters: dict[str, Any] = Field(default_factory=dict, description="parameters handed to the notebook")

    @property
    def target(self) -> str:
        """The `make` target: `reproduce-table1`, `reproduce-ev-figure7`."""
        middle = "" if self.paper == "WT" else "ev-"
        return f"reproduce-{middle}{self.kind}{self.number.lower()}"


class ClaimCheck(Section):
    """How a claim is checked, on the seed-paired changes of an arm on a suite against its table's baseline.

    `change_sign`: the change has `sign` at every seed. `no_change`: its sign flips between seeds. `change_order`: its
    mean is above that of the arm `above`. One seed alone decides none of them.
    """

    kind: Literal["change_sign", "change_order", "no_change"]
    arm: str
    suite: str
    metric: Literal["nDCG@5", "nDCG@10"] = Field("nDCG@5", description="what the changes are of, as scores name it")
    recipe: str | None = Field(None, description="the recipe of its runs; the table's, else the record's, if not given")
    sign: Literal["+", "-"] | None = None
    above: str | None = Field(None, description="the arm that must have the smaller change")

    @model_validator(mode="after")
    def _decidable(self) -> ClaimCheck:
        for name, kind in (("sign", "change_sign"), ("above", "change_order")):
            if (self.kind == kind) != (getattr(self, name) is not None):
                raise ValueError(f"`{name}` belongs to a check of kind {kind}, and only there")
        return self


class Claim(Section):
    """A quantitative sentence of a paper, with the check that decides it on a result set."""

    name: str
    paper: Literal["WT", "EV"]
    source: str
    text: str
    paper_value: float | None = None
    table: str = Field(description="the table whose runs decide it")
    check: ClaimCheck


Entry = TypeVar("Entry", bound=Section)


class Catalogue(dict[str, Entry]):
    """Entries by name, in the file's order; an unknown name is a `BadInput` that says the nearest ones."""

    def __init__(self, kind: str, entries: dict[str, Entry]) -> None:
        super().__init__(entries)
        self.kind = kind

    def __missing__(self, name: str) -> Entry:
        raise BadInput(f"unknown {self.kind} {name!r}", where=f"--{self.kind}", todo=did_you_mean(str(name), self))


def _load(kind: str, file: Path, model: type[Entry]) -> Catalogue[Entry]:
    entries: dict[str, Entry] = {}
    for name, body in read_yaml(file).items():
        if not isinstance(body, dict):
            raise BadInput(f"entry {name!r} is not a mapping", where=file)
        try:
            entries[str(name)] = model.model_validate({"name": str(name), **body})
        except ValidationError as error:
            raise explain(error, f"{file.name}: {name}", model) from error
    return Catalogue(kind, entries)


@functools.lru_cache(maxsize=4)
def load_arms(file: Path = STUDY / "arms.yaml") -> Catalogue[Arm]:
    """The arms. Raises `BadInput` for an arm whose baseline or matched arm is not declared."""
    arms = _load("arm", file, Arm)
    for arm in arms.values():
        arms[arm.baseline]
        if arm.negatives is not None and arm.negatives.rule == "perc_matched":
            matched = arms[arm.negatives.match].negatives
            if matched is None or matched.rule != "teacher":
                raise BadInput(f"{arm.name} matches {arm.negatives.match}, which judges nothing", where=file)
    return arms


@functools.lru_cache(maxsize=4)
def load_recipes(file: Path = STUDY / "recipes.yaml") -> Catalogue[Recipe]:
    """The recipes: how long a student trains."""
    return _load("recipe", file, Recipe)


@functools.lru_cache(maxsize=4)
def load_suites(file: Path = STUDY / "suites.yaml") -> Catalogue[Suite]:
    """The suites, in the tables' order of columns."""
    return _load("suite", file, Suite)


@functools.lru_cache(maxsize=4)
def load_tables(file: Path = STUDY / "tables.yaml") -> Catalogue[Table]:
    """The tables and figures. Raises `BadInput` for one that names an unknown arm, recipe or suite."""
    tables = _load("table", file, Table)
    for table in tables.values():
        for arm in (*table.arms, table.baseline):
            load_arms()[arm]
        for suite in table.suites:
            load_suites()[suite]
        if table.recipe is not None:
            load_recipes()[table.recipe]
    return tables


@functools.lru_cache(maxsize=4)
def load_claims(file: Path = STUDY / "claims.yaml") -> Catalogue[Claim]:
    """The claims. Raises `BadInput` for one that names an unknown arm, suite, recipe or table."""
    claims = _load("claim", file, Claim)
    for claim in claims.values():
        load_arms()[claim.check.arm]
        load_suites()[claim.check.suite]
        load_tables()[claim.table]
        if claim.check.above is not None:
            load_arms()[claim.check.above]
        if claim.check.recipe is not None:
            load_recipes()[claim.check.recipe]
    return claims
