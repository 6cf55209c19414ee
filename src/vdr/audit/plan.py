"""The analysis plan of a study: what will be computed, fixed before any grade exists (WT §8, App. K)."""

from __future__ import annotations

import hashlib
import operator
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError

from vdr.errors import BadInput
from vdr.study.base import Section
from vdr.study.yaml_io import explain, parse_yaml

__all__ = ["ANALYSES", "Cut", "Plan", "default_plan_text", "load_plan", "sha256_text"]

ANALYSES = (
    "precision", "miss", "relevant_per_query", "kappa", "annotators", "leave_one_out", "thresholds", "hedge", "evidence",
)  # fmt: skip
POST_HOC = ("hedge_by_breadth",)
_OPERATORS = {">=": operator.ge, ">": operator.gt}


class Cut(Section):
    """A threshold on the teacher's rating, in [0, 1]."""

    operator: Literal[">=", ">"]
    value: float = Field(ge=0, le=1)

    @property
    def label(self) -> str:
        return f"{'≥' if self.operator == '>=' else '>'}{self.value:g}"

    def protects(self, scores: np.ndarray) -> np.ndarray:
        """Boolean mask of the ratings that pass the cut; NaN never does."""
        return np.asarray(_OPERATORS[self.operator](scores, self.value), dtype=bool)


class Plan(Section):
    """The plan's parameters; `rules` and the texts of `analyses` are for the reader and are part of the hash."""

    version: int
    seed: int
    resamples: int = Field(ge=100)
    interval: float = Field(gt=0.5, lt=1)
    cut: float = Field(ge=0, le=1)
    hedge: float = Field(ge=0, le=1)
    relevant_grade: int = Field(ge=1, le=3)
    cuts: tuple[Cut, ...]
    outlier_mads: float = Field(gt=0)
    rules: dict[str, str]
    analyses: dict[str, str]
    post_hoc: dict[str, str] = Field(default_factory=dict)

    @property
    def base_cut(self) -> Cut:
        return Cut(operator=">=", value=self.cut)


def default_plan_text() -> str:
    """The plan that ships with the package, as text."""
    return resources.files("vdr.audit").joinpath("plan.yaml").read_text(encoding="utf-8")


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def load_plan(text: str | None = None, *, where: str | Path = "plan.yaml") -> Plan:
    """Parse a plan. Raises `BadInput` for an unknown key, an unknown analysis or a value out of range."""
    try:
        plan = Plan.model_validate(parse_yaml(default_plan_text() if text is None else text, where))
    except ValidationError as error:
        raise explain(error, str(where), Plan) from None
    unknown = sorted((set(plan.analyses) - set(ANALYSES)) | (set(plan.post_hoc) - set(POST_HOC)))
    if unknown:
        raise BadInput(
            f"no analysis is called {', '.join(unknown)}", where=where, todo=f"known: {', '.join(ANALYSES + POST_HOC)}"
        )
    return plan
