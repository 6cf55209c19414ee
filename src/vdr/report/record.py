"""The record of a run: the small files behind every table, figure and notebook, in one directory that can be committed.

`outputs/<profile>/record` is collected from a run's artefacts, `outputs/recorded/<profile>` is a copy that is kept
with the code; both are read by the same functions, so what renders from one renders from the other:

    record.json                            what was run, on what, and the SHA-256 of every file below
    runs/<arm>/seed-<s>/scores.json        scores, and <suite>/<dataset>.trec.gz with the first hits of every query
    qrels/<suite>/<dataset>.tsv.gz         the judgements they are scored against stages/<stage>/<name>/manifest.json
    manifest of every artefact upstream of the runs, with its small reports (*.json, *.csv, samples/)

Scores are computed again from run files and qrels whenever a record is read for a table, and must equal the recorded
ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.corpus.qrels import read_qrels
from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.evaluate import load_scores, macro_average
from vdr.evaluation.metrics_wt import mean_over_queries, ndcg_per_query
from vdr.evaluation.run_files import read_run
from vdr.store import sha256_file
from vdr.study.settings import repository_root

__all__ = ["FORMAT", "Record", "RunEntry", "fingerprint", "open_record", "shown_path"]

FORMAT = 1


@dataclass(frozen=True)
class RunEntry:
    """One evaluated checkpoint. `pedigree`: {stage: [{"key", "directory"}, …]} of everything upstream of it."""

    arm: str
    seed: int
    recipe: str
    key: str
    directory: str
    pedigree: dict[str, list[dict[str, str]]]

    @property
    def place(self) -> str:
        """Where its files lie in the record."""
        return f"runs/{self.arm}/seed-{self.seed}"


@dataclass(frozen=True)
class Record:
    """A record on disk; `meta` is its `record.json`."""

    root: Path
    meta: dict[str, Any] = field(repr=False, compare=False)

    @property
    def runs(self) -> list[RunEntry]:
        return [RunEntry(**entry) for entry in self.meta["runs"]]

    @property
    def notes(self) -> list[str]:
        """What a reader of any table has to know: profile, machine, seeds, oracle and simulated parts."""
        return list(self.meta["notes"])

    def scores(self, *, recompute: bool = True) -> pd.DataFrame:
        """arm, recipe, seed, suite, value (nDCG@k × 100, unrounded), from the run files unless `recompute` is off.

        Raises DamagedArtefact when a recomputed score differs from the recorded one by more than 1e-9.
        """
        rows = []
        qrels: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
        for run in self.runs:
            scores = load_scores(self.root / run.place)
            key = f"ndcg_at_{scores['cutoff']}"
            for suite, content in scores["suites"].items():
                value = self._recomputed(run, suite, scores, key, qrels) if recompute else content[key]
                rows.append({"arm": run.arm, "recipe": run.recipe, "seed": run.seed, "suite": suite, "value": value})
        return pd.DataFrame(rows, columns=["arm", "recipe", "seed", "suite", "value"])

    def _recomputed(
        self, run: RunEntry, suite: str, scores: Mapping[str, Any], key: str, qrels: dict[tuple[str, str], Any]
    ) -> float:
        sets = {}
        for name in scores["suites"][suite]["datasets"]:
            place = self.root / run.place / suite / f"{name}.trec.gz"
            if (suite, name) not in qrels:
                qrels[(suite, name)] = self.qrels(suite, name)
            judged = qrels[(suite, name)]
            found = ndcg_per_query(read_run(place), judged, scores["cutoff"], scores["gain"])
            sets[name] = {key: mean_over_queries(found)}
        value = macro_average(sets, key)
        if abs(value - scores["suites"][suite][key]) > 1e-9:
            what = f"run files give {value:.4f} on {suite}, scores.json says {scores['suites'][suite][key]:.4f}"
            raise DamagedArtefact(what, where=self.root / run.place, todo="record the run again")
        return value

    def qrels(self, suite: str, dataset: str) -> dict[str, dict[str, int]]:
        """Judgements of one data set."""
        return read_qrels(self.root / "qrels" / suite / f"{dataset}.tsv.gz")

    def datasets(self) -> pd.DataFrame:
        """One row a run and data set: arm, recipe, seed, suite, dataset and what `scores.json` says of it."""
        rows = []
        for run in self.runs:
            for suite, content in load_scores(self.root / run.place)["suites"].items():
                for name, entry in content["datasets"].items():
                    own = {"arm": run.arm, "recipe": run.recipe, "seed": run.seed, "suite": suite, "dataset": name}
                    rows.append(own | {k: v for k, v in entry.items() if k != "run_file"})
        return pd.DataFrame(rows)

    def stages(self, stage: str) -> list[dict[str, Any]]:
        """Manifests of a stage's artefacts (with `place`, their directory in the record), by label; [] when there is
        none."""
        found = []
        for path in sorted((self.root / "stages" / stage).glob("*/manifest.json")):
            manifest = json.loads(path.read_text(encoding="utf-8"))
            found.append(manifest | {"place": path.parent.relative_to(self.root).as_posix()})
        return found

    def file(self, stage: str, name: str, label: str | None = None) -> Path:
        """A report of a stage's artefact (the only one, or the one labelled `label`). BadInput when it is not there."""
        places = [m for m in self.stages(stage) if label is None or m.get("label") == label]
        found = [path for m in places if (path := self.root / m["place"] / name).is_file()]
        if len(found) != 1:
            what = f"the record holds {len(found)} files {name!r} of stage {stage!r}" + (
                f" labelled {label!r}" if label else ""
            )
            raise BadInput(what, where=shown_path(self.root), todo="record the run again")
        return found[0]

    def json(self, stage: str, name: str, label: str | None = None) -> Any:
        """A JSON report of a stage."""
        return json.loads(self.file(stage, name, label).read_text(encoding="utf-8"))

    def extra(self, name: str) -> Path:
        """A file outside `stages/` and `runs/`, by relative path. BadInput when the record lacks it."""
        path = self.root / name
        if not path.is_file():
            raise BadInput(f"the record has no {name}", where=shown_path(self.root), todo="record the run again")
        return path


def shown_path(path: Path) -> str:
    """A path as it is printed: relative to the repository where it lies inside."""
    root, path = repository_root().resolve(), Path(path).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def open_record(root: Path | str, *, verify: bool = True) -> Record:
    """Open a record (relative paths count from the repository). DamagedArtefact on a missing or changed file."""
    root = Path(root)
    root = root if root.is_absolute() else repository_root() / root
    path = root / "record.json"
    if not path.is_file():
        raise BadInput(
            "no record here", where=shown_path(root), todo="run the study first, or name outputs/recorded/mini"
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        files = meta["files"]
        if meta["format"] != FORMAT:
            raise DamagedArtefact(f"record format {meta['format']}, this code reads {FORMAT}", where=path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtefact(
            f"record.json cannot be read ({error})", where=path, todo="record the run again"
        ) from error
    if verify:
        for name, facts in files.items():
            if not (root / name).is_file():
                raise DamagedArtefact("file is missing from the record", where=root / name, todo="record the run again")
            if sha256_file(root / name) != facts["sha256"]:
                raise DamagedArtefact("differs from record.json", where=root / name, todo="record the run again")
    return Record(root, meta)


def fingerprint(record: Record) -> str:
    """SHA-256 over the recorded run files: equal for two runs that ranked every query alike, with equal scores."""
    digest = hashlib.sha256()
    for name, facts in sorted(record.meta["files"].items()):
        if name.startswith("runs/") and name.endswith(".trec.gz"):
            digest.update(f"{name} {facts['sha256']}\n".encode())
    return digest.hexdigest()
