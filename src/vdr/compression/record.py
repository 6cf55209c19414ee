"""The record of a compression run: the small files behind EV's tables and figures, in one directory that can be committed.

``ev/record.json`` (machine, widths, notes, SHA-256 of every file), ``scores-<encoder>.csv``, ``serving.csv``, ``cases.json``
with ``case-<kind>.png`` (the page) and ``case-<kind>.npz`` (map, labels). Tables, figures and chapters read nothing else.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.compression.evidence import Case, find_cases
from vdr.compression.pooling import Pooling
from vdr.compression.prefix import Widths
from vdr.errors import BadInput, DamagedArtefact
from vdr.models.vectors import read_vectors
from vdr.store import Artefact, sha256_file
from vdr.study.sections.compression import CompressionSettings
from vdr.textfiles import measured_table

__all__ = ["EvRecord", "collect", "open_record", "write_cases"]

FORMAT = 1


@dataclass(frozen=True)
class EvRecord:
    """An open record; ``meta`` is its record.json."""

    root: Path
    meta: Mapping[str, Any]

    @property
    def settings(self) -> CompressionSettings:
        return CompressionSettings.model_validate(self.meta["settings"])

    @property
    def notes(self) -> list[str]:
        return list(self.meta["notes"])

    def encoder(self, name: str = "student") -> dict[str, Any]:
        """label, full, trained widths of an encoder; BadInput when the record has none of that name."""
        if name not in self.meta["encoders"]:
            known = ", ".join(sorted(self.meta["encoders"]))
            raise BadInput(f"the record has no encoder {name!r}", where=self.root, todo=f"known: {known}")
        return dict(self.meta["encoders"][name])

    def scores(self, encoder: str = "student") -> pd.DataFrame:
        """Rows suite, dataset, variant, … of one encoder."""
        self.encoder(encoder)
        return measured_table(self.root / f"scores-{encoder}.csv")

    def serving(self) -> pd.DataFrame:
        """Table 12's measurements."""
        return self._needed("serving.csv", measured_table)

    def cases(self) -> dict[str, Any]:
        """Counts and cases of Figure 8, each with its page, map and labels."""
        content = self._needed("cases.json", lambda path: json.loads(path.read_text(encoding="utf-8")))
        from vdr.pixels import open_page

        for case in content["cases"]:
            arrays = np.load(self.root / f"case-{case['kind']}.npz")
            case["map"], case["labels"] = arrays["map"], arrays["labels"]
            case["image"] = open_page(self.root / f"case-{case['kind']}.png", f"case {case['kind']}")
        return dict(content)

    def _needed(self, name: str, read: Any) -> Any:
        path = self.root / name
        if not path.is_file():
            raise BadInput(f"the record has no {name}", where=self.root, todo="run `vdr hac reproduce` again")
        return read(path)


def collect(root: Path, settings: CompressionSettings, scores: Mapping[str, Artefact], serving: Artefact | None,
            cases: Artefact | None, *, profile: str, notes: Sequence[str], machine: Mapping[str, Any] | None = None) -> EvRecord:
    """Copy artefacts' small files into ``root`` (replaced as a whole) and describe them."""
    root = Path(root)
    work = root.with_name(f".{root.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    encoders, keys = {}, {}
    for name, artefact in scores.items():
        shutil.copy(artefact.path / "scores.csv", work / f"scores-{name}.csv")
        encoders[name] = json.loads((artefact.path / "encoder.json").read_text(encoding="utf-8"))
        keys[f"scores-{name}"] = artefact.key
    for stage, part in (("serving", serving), ("cases", cases)):
        if part is None:
            continue
        keys[stage] = part.key
        for file in sorted(part.path.iterdir()):
            if file.name != "manifest.json" and file.is_file():
                shutil.copy(file, work / file.name)
    files = {path.name: sha256_file(path) for path in sorted(work.iterdir())}
    meta = {"format": FORMAT, "profile": profile, "settings": settings.plain(), "encoders": encoders, "artefacts": keys,
            "machine": dict(machine or {"processor": platform.processor() or platform.machine()}), "notes": list(notes),
            "files": files}
    text = json.dumps(meta, indent=1, sort_keys=True, ensure_ascii=False)
    (work / "record.json").write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(root, ignore_errors=True)
    work.rename(root)
    return open_record(root)


def open_record(root: Path | str) -> EvRecord:
    """Open a record and compare every file with its SHA-256. Raises BadInput when there is none, DamagedArtefact otherwise."""
    root = Path(root)
    place = root / "record.json"
    if not place.is_file():
        raise BadInput("there is no compression record", where=root, todo="run `vdr hac reproduce ev-table8` first")
    try:
        meta = json.loads(place.read_text(encoding="utf-8"))
        files = dict(meta["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedArtefact(f"cannot be read ({error})", where=place, todo="record the run again") from error
    for name, digest in files.items():
        path = root / name
        if not path.is_file() or sha256_file(path) != digest:
            raise DamagedArtefact("is missing or does not have the recorded SHA-256", where=path, todo="record the run again")
    return EvRecord(root, meta)


def write_cases(out: Path, vectors: Path, datasets: Sequence[Any], settings: CompressionSettings, widths: Widths,
                measures: dict[str, Any]) -> None:
    """Find evidence cases over a suite's data sets; counts are sums, the cases shown come from the first set that has one."""
    pooling = Pooling("hac", settings.d, settings.k, settings.w_pos)
    total = {"queries": 0, "kept": 0, "lost": 0}
    shown: dict[str, dict[str, Any]] = {}
    for data in datasets:
        pages, queries = read_vectors(vectors / data.suite / data.name)
        found = find_cases(pages, queries, data.qrels, pooling, widths, lost_rank=settings.lost_rank)
        for name in total:
            total[name] += getattr(found, name)
        for case in found.cases:
            if case.kind not in shown:
                shown[case.kind] = _write_case(out, data, case)
    content = {**total, "pooling": pooling.name, "lost_rank": settings.lost_rank, "cases": list(shown.values())}
    (out / "cases.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    measures.update(total)


def _write_case(out: Path, data: Any, case: Case) -> dict[str, Any]:
    data.pages.image(data.pages.index(case.page_id)).save(out / f"case-{case.kind}.png")
    np.savez(out / f"case-{case.kind}.npz", map=case.map, labels=case.labels)
    plain = {key: value for key, value in asdict(case).items() if key not in ("map", "labels")}
    return {**plain, "suite": data.suite, "dataset": data.name, "query": data.queries[case.query_id]}
