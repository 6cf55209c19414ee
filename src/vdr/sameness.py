"""Are these the recorded bytes? Artefacts made here beside the manifests that the recorded run keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vdr.errors import BadInput
from vdr.graph import order
from vdr.report.record import shown_path
from vdr.store import Artefact, Store

if TYPE_CHECKING:
    from vdr.pipeline import Study

__all__ = ["Sameness", "compare_artefacts", "make_head_again", "recorded_manifests"]

#: The head's arms. A besides the baseline because its loss is the one with matrix products of its own, in torch's library.
HEAD_ARMS = ("baseline", "A")
COMPARED = ".compared"


def recorded_manifests(record: Path) -> dict[str, dict[str, Any]]:
    """Manifests that a record keeps, by key. Raises `BadInput` for a record without any."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(record.glob("stages/*/*/manifest.json"))]
    if not found:
        raise BadInput("no manifests of a recorded run here", where=shown_path(record), todo="only profiles with a recorded run have them")
    return {manifest["key"]: manifest for manifest in found}


@dataclass(frozen=True)
class Sameness:
    """`same` and `other`: artefacts with the recorded bytes and with others, in the order they were made; `unknown`: those whose key the
    record does not have, so made from other settings, data or weights."""

    same: list[Artefact]
    other: list[tuple[Artefact, str]]
    unknown: list[Artefact]
    recorded: Mapping[str, Mapping[str, Any]]

    def lines(self) -> list[str]:
        """The verdict; where bytes differ, the first artefact that does and what both sides were made with."""
        every = len(self.same) + len(self.other) + len(self.unknown)
        if not self.other and not self.unknown:
            return [f"the recorded bytes: all {every} artefacts have every file as recorded"]
        lines = []
        if self.unknown:
            first = self.unknown[0]
            lines.append(
                f"not comparable: {len(self.unknown)} of {every} artefacts were made from other settings, data, weights or "
                f"instructions than the recorded ones, first {first.stage} {first.path.name}"
            )
        if self.other:
            artefact, file = self.other[0]
            lines.append(
                f"NOT the recorded bytes: {len(self.other)} of {every} artefacts differ, "
                f"first {artefact.stage} {artefact.path.name} ({file})"
            )
            recorded = self.recorded[artefact.key]
            lines += [f"  here      {_made_with(artefact.manifest)}", f"  recorded  {_made_with(recorded)}"]
            lines += [f"  {text}" for text in _unlike(artefact.manifest, recorded)]
        return lines


def compare_artefacts(artefacts: Iterable[Artefact], recorded: Mapping[str, Mapping[str, Any]]) -> Sameness:
    """Every artefact's file hashes beside those of the recorded artefact with its key."""
    result = Sameness([], [], [], recorded)
    for artefact in artefacts:
        if artefact.key not in recorded:
            result.unknown.append(artefact)
            continue
        here, there = artefact.manifest["files"], recorded[artefact.key]["files"]
        differing = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
        if differing:
            result.other.append((artefact, differing[0]))
        else:
            result.same.append(artefact)
    return result


def _made_with(manifest: Mapping[str, Any]) -> str:
    hardware = manifest["hardware"]
    level = hardware.get("instructions", "instructions not noted")
    return f"{hardware['processor']}, {level}, code {manifest['code'].get('commit', '?')[:9]}"


def _unlike(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Packages and code that differ between two manifests: what may be the reason."""
    packages = [
        f"{name} {here['packages'].get(name)} here, {there['packages'].get(name)} recorded"
        for name in sorted({*here["packages"], *there["packages"]})
        if here["packages"].get(name) != there["packages"].get(name)
    ]
    if here["code"]["source_sha256"] != there["code"]["source_sha256"]:
        packages.append("the package's code is not the recorded one")
    return packages or ["code and packages are the same: the processors' rounding, or a defect"]


def make_head_again(study: Study) -> tuple[list[str], int]:
    """Corpus, vision cache, miner, and the first seed of baseline and A, in a store of their own; lines, and how many artefacts differ.

    A call that was stopped goes on; one that compared starts from nothing.
    """
    from vdr.finish import as_shipped, recorded_place
    from vdr.study.catalogue import load_arms

    profile = study.profile
    as_shipped(profile)
    recorded = recorded_manifests(recorded_place(profile))
    place = profile.outputs / "recorded-again"
    if (place / COMPARED).exists():
        shutil.rmtree(place)
    study.store = Store(place)
    runs = [study.steps.run(load_arms()[name], profile.seeds[0], profile.recipe) for name in HEAD_ARMS]
    targets = [study.steps.miner(), *runs]
    steps = order(*targets)
    if not any(step.key in recorded for step in steps):
        raise BadInput(
            "the recorded run was made from other settings, data or weights",
            where=shown_path(recorded_place(profile)),
            todo="verify the profile as it ships, without --set",
        )
    for step in targets:
        study.make(step)
    made = [artefact for step in steps if (artefact := step.find(study.store)) is not None]
    found = compare_artefacts(made, recorded)
    (place / COMPARED).touch()
    wrong = len(found.other) + len(found.unknown)
    if not wrong:
        shutil.rmtree(place)
    return [f"same   {item.stage} {item.path.name}" for item in found.same] + found.lines(), wrong
