"""Profiles: how large a run is and on what machine. Never which code runs: no part asks for a profile's name.

A profile is a YAML file in `profiles/`; it may extend another one (`extends: mini`) and give only what differs.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from vdr.errors import BadInput, did_you_mean
from vdr.study.base import Section
from vdr.study.changed import changes_between, describe, outputs_name
from vdr.study.sections.audit import AuditSettings
from vdr.study.sections.compression import CompressionSettings
from vdr.study.sections.corpus import CorpusSettings
from vdr.study.sections.evaluation import EvaluationSettings
from vdr.study.sections.hardware import HardwareSettings
from vdr.study.sections.mining import MiningSettings
from vdr.study.sections.models import ModelsSettings
from vdr.study.sections.report import ReportSettings
from vdr.study.sections.supervision import SupervisionSettings
from vdr.study.sections.teacher import TeacherSettings
from vdr.study.sections.training import TrainingSettings
from vdr.study.yaml_io import explain, merge, parse_yaml, read_yaml, settable_paths

__all__ = ["STUDY", "Profile", "Section", "load_profile", "profile_names", "repository_root"]

STUDY = Path(__file__).parent
PROFILES = STUDY / "profiles"
#: What lies in `outputs/` beside the profiles' own places.
KEPT = ("recorded", "reference")


class Profile(Section):
    """One size of the study: seeds, suites and the settings of every part."""

    name: str
    title: str
    description: str = Field(description="for whom, on what machine, how long")
    seeds: tuple[int, ...] = Field(min_length=1, description="training seeds; the first is the reference seed")
    recipe: str = Field("three_epochs", description="the recipe of the primary tables")
    suites: tuple[str, ...] = Field(min_length=1, description="suites that are evaluated, in the tables' order")
    hardware: HardwareSettings
    corpus: CorpusSettings
    models: ModelsSettings
    teacher: TeacherSettings
    mining: MiningSettings
    supervision: SupervisionSettings
    training: TrainingSettings
    evaluation: EvaluationSettings
    report: ReportSettings
    compression: CompressionSettings
    audit: AuditSettings

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError("seeds are distinct and not negative")
        return seeds

    @property
    def ships(self) -> bool:
        """Whether a profile of this name comes with the package."""
        return _shipped(self.name) is not None

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ from the shipped profile's and can change a result (`vdr.study.changed`)."""
        return changes_between(self, _shipped(self.name))

    def described(self) -> str:
        """Which settings these are, in words for a table: as shipped, or what was changed."""
        return describe(self.name, self.changes, ships=self.ships)

    @property
    def outputs(self) -> Path:
        """Where record, tables and figures go: `outputs/<profile>` as it ships, a place of their own for other settings
        (under `VDR_OUTPUTS` instead of `outputs` where that is set)."""
        return outputs_root() / outputs_name(self.name, self, self.changes, ships=self.ships)

    @property
    def artefacts(self) -> Path:
        """The store's root, shared by all settings of a profile: an artefact's key says what it was made from. Keys say
        nothing of devices, so a device that is not the profile's own has another store."""
        shipped = _shipped(self.name)
        own = "cpu" if shipped is None else shipped.hardware.device
        device = "" if self.hardware.device == own else f"-{self.hardware.device}"
        return outputs_root() / self.name / f"artefacts{device}"

    def seed(self, seed: int) -> int:
        """The seed itself if the profile has it; `BadInput` otherwise."""
        if seed not in self.seeds:
            known = ", ".join(str(item) for item in self.seeds)
            raise BadInput(f"profile {self.name} has no seed {seed}", where="--seed", todo=f"known: {known}")
        return seed


def repository_root() -> Path:
    """The checkout that holds the package, or the working directory for an installed copy."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").exists() else Path.cwd()


def outputs_root() -> Path:
    """Where profiles write: `outputs/` of the checkout, or the directory that `VDR_OUTPUTS` names."""
    given = os.environ.get("VDR_OUTPUTS")
    return Path(given).resolve() if given else repository_root() / "outputs"


def profile_names() -> list[str]:
    """The profiles that ship with the package."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


@functools.cache
def _shipped(name: str) -> Profile | None:
    return load_profile(name) if name in profile_names() else None


def load_profile(name: str = "mini", overrides: Iterable[str] | Mapping[str, Any] = ()) -> Profile:
    """Read a profile (by name, or a path ending in .yaml) and apply overrides (`section.field=value`, values in YAML).

    Raises `BadInput` for an unknown profile, section or field (with the nearest names), and for a value out of range.
    """
    raw = _raw(name)
    for path, value in _parsed(overrides):
        raw = _with_override(raw, path, value)
    for section in Profile.model_fields:
        info = Profile.model_fields[section]
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            raw.setdefault(section, {})
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        raise explain(error, f"profile {raw.get('name', name)}", Profile) from error


def _raw(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    path = Path(name) if name.endswith(".yaml") else PROFILES / f"{name}.yaml"
    if not name.endswith(".yaml") and name not in profile_names():
        raise BadInput(f"unknown profile {name!r}", where="--profile", todo=did_you_mean(name, profile_names()))
    if name in seen:
        raise BadInput("profiles extend one another in a circle", where=path)
    raw = read_yaml(path)
    parent = raw.pop("extends", None)
    if parent is not None:
        raw = merge(_raw(str(parent), (*seen, name)), raw)
    if not re.fullmatch(r"[\w-][\w.-]*", path.stem) or path.stem in KEPT:
        raise BadInput(f"{path.stem!r} cannot name a profile's outputs", where=path, todo="give the file another name")
    raw["name"] = path.stem
    return raw


def _parsed(overrides: Iterable[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    pairs = []
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise BadInput(f"{text!r} is not section.field=value", where="--set")
        pairs.append((path.strip(), parse_yaml(value, f"--set {path.strip()}")))
    return pairs


def _with_override(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    known = [item for item in settable_paths(Profile) if item != "name"]
    parts = path.split(".")
    if path not in known:
        # A field that is itself a free mapping (say, a table of sizes) may be entered one level deeper.
        inside = [item for item in known if path.startswith(item + ".")]
        if not inside:
            near = [item for item in known if item.rsplit(".", 1)[-1] == parts[-1]]
            todo = f"did you mean {near[0]!r}?" if near else did_you_mean(path, known)
            raise BadInput(f"unknown setting {path!r}", where="--set", todo=todo)
    nested: Any = value
    for part in reversed(parts):
        nested = {part: nested}
    return merge(raw, nested)
