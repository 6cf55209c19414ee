"""Data manifests: what data and weights must look like, and whether they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from vdr.errors import VdrError
from vdr.models.weights import digest_of, locate
from vdr.store import Store
from vdr.study.base import Section
from vdr.study.settings import Profile, repository_root
from vdr.study.yaml_io import explain, read_yaml

__all__ = ["DataManifest", "check_all", "load_manifests"]


class DataManifest(Section):
    """One file of `data_manifests/`."""

    id: str = Field(description="name in its hub, or `vdr:NAME`, or the generator's name")
    kind: Literal["corpus", "suite", "weights"]
    title: str = ""
    revision: str | None = None
    licence: str | None = None
    source: str = ""
    counts: dict[str, int] = Field(default_factory=dict)
    checksums: dict[str, str] = Field(default_factory=dict, description="SHA-256 by file, or by profile for a generated corpus")
    rule: str = Field("", description="what a checksum is taken over")
    facts: dict[str, Any] = Field(default_factory=dict, description="anything else worth knowing: how weights were made, accuracy")


def load_manifests(folder: Path | None = None) -> dict[str, DataManifest]:
    """Manifests by file name without ending. Raises `BadInput` naming file and field."""
    folder = repository_root() / "data_manifests" if folder is None else folder
    manifests = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            manifests[path.stem] = DataManifest.model_validate(read_yaml(path))
        except ValidationError as error:
            raise explain(error, path.name, DataManifest) from error
    return manifests


def check_all(profile: Profile, folder: Path | None = None) -> tuple[list[str], int]:
    """Lines about every manifest, and how many of them are wrong."""
    lines: list[str] = []
    wrong = 0
    for name, manifest in load_manifests(folder).items():
        verdict, text = _check(manifest, profile)
        lines.append(f"{verdict:6} {name}: {text}")
        wrong += verdict == "WRONG"
    return lines, wrong


def _check(manifest: DataManifest, profile: Profile) -> tuple[str, str]:
    if manifest.kind == "weights" and manifest.id.startswith("vdr:"):
        try:
            found = digest_of(locate(manifest.id))
        except VdrError as error:
            return "WRONG", str(error)
        expected = manifest.checksums.get("weights", "")
        return ("ok", "the shipped weights match") if found == expected else ("WRONG", f"{found[:12]}…, not {expected[:12]}…")
    if manifest.kind == "corpus" and profile.name in manifest.checksums:
        corpora = Store(profile.artefacts).artefacts("corpus")
        found_sums = {str(item.measures.get("checksum")) for item in corpora}
        expected = manifest.checksums[profile.name]
        if not corpora:
            return "note", "not made here yet"
        return ("ok", "the corpus matches") if expected in found_sums else ("WRONG", f"no corpus here has checksum {expected[:12]}…")
    if manifest.revision is None:
        return "note", "no revision pinned yet"
    return "note", f"at {manifest.revision[:12]}; fetched when a profile needs it"
