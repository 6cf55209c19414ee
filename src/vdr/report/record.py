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
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.evaluate import load_scores, macro_average, score_run
from vdr.evaluation.run_files import read_qrels, read_run, write_qrels, write_run
from vdr.store import Artefact, load_artefact, sha256_file
from vdr.study.settings import repository_root

__all__ = ["Record", "RunEntry", "collect", "copy_record", "open_record", "shown_path", "upstream"]

FORMAT = 1
REPORTS = ("*.json", "*.csv", "samples/*.png")


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
            sets[name] = score_run(
                read_run(place), judged, k=scores["cutoff"], gain=scores["gain"], cross_check=False, where=str(place)
            )
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


def upstream(artefact: Artefact, root: Path) -> dict[str, Artefact]:
    """Every artefact that `artefact` was made from, by key, itself included; `root` is the store's root.

    Raises DamagedArtefact when an input is no longer there: a result without its pedigree is not recorded.
    """
    found: dict[str, Artefact] = {}
    waiting = [artefact]
    while waiting:
        item = waiting.pop()
        if item.key in found:
            continue
        found[item.key] = item
        keys, paths = _flat(item.manifest["inputs"]), _flat(item.manifest["input_paths"])
        for key, place in zip(keys, paths, strict=True):
            if key not in found:
                waiting.append(load_artefact(root / place, key, verify=False))
    return found


def _flat(named: Mapping[str, Any]) -> list[str]:
    return [item for value in named.values() for item in (value if isinstance(value, list) else [value])]


def collect(
    out: Path,
    runs: Mapping[tuple[str, int], Artefact],
    datasets: Iterable[Any],
    *,
    store_root: Path,
    profile: str,
    recipe: str,
    notes: Iterable[str] = (),
    depth: int = 10,
    file_limit_kib: int = 512,
    extra: Iterable[Artefact] = (),
    more: Mapping[str, bytes] | None = None,
) -> Record:
    """Build a record from run artefacts by (arm, seed); replaces `out` only when the new record is complete.

    datasets: the suites that were evaluated (`suite`, `name`, `qrels`); only their judged pages enter. depth: hits
    kept per query, at least the metric's cutoff. extra: artefacts that no run descends from but that the chapters
    show. more: further small files by relative path (:mod:`vdr.report.gallery`). notes: lines printed beside every
    table; machine and seeds are added. Raises BadInput when there are no runs.
    """
    if not runs:
        raise BadInput("there are no runs to record", todo="evaluate at least one arm")
    out = Path(out)
    work = out.with_name(f".{out.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        everything: dict[str, Artefact] = {}
        entries = []
        for (arm, seed), artefact in sorted(runs.items()):
            behind = upstream(artefact, store_root)
            everything |= behind
            entries.append(_run_entry(arm, seed, recipe, artefact, behind))
            _copy_run(artefact, work / f"runs/{arm}/seed-{seed}", depth)
        for artefact in extra:
            everything |= upstream(artefact, store_root)
        for data in datasets:
            write_qrels(work / "qrels" / data.suite / f"{data.name}.tsv.gz", data.qrels)
        for artefact in everything.values():
            _copy_reports(artefact, work / "stages" / artefact.stage / artefact.path.name, file_limit_kib)
        for name, content in (more or {}).items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        meta = {
            "format": FORMAT,
            "profile": profile,
            "recipe": recipe,
            "depth": depth,
            "notes": [*notes, *_machine_notes(everything.values()), f"Seeds: {_seed_text(runs)}."],
            "runs": entries,
            "files": _hashes(work),
        }
        text = json.dumps(meta, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        (work / "record.json").write_text(text, encoding="utf-8")
        _replace(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return open_record(out, verify=False)


def _run_entry(arm: str, seed: int, recipe: str, artefact: Artefact, behind: Mapping[str, Artefact]) -> dict[str, Any]:
    pedigree: dict[str, list[dict[str, str]]] = {}
    for item in sorted(behind.values(), key=lambda a: (a.stage, a.path.name)):
        if item.key != artefact.key:
            pedigree.setdefault(item.stage, []).append({"key": item.key, "directory": shown_path(item.path)})
    own = {"arm": arm, "seed": seed, "recipe": recipe, "key": artefact.key, "directory": shown_path(artefact.path)}
    return own | {"pedigree": pedigree}


def _copy_run(artefact: Artefact, place: Path, depth: int) -> None:
    scores = load_scores(artefact.path)
    if depth < scores["cutoff"]:
        raise BadInput(f"depth {depth} is below the metric's cutoff {scores['cutoff']}", where="report.recorded_depth")
    for suite, content in scores["suites"].items():
        for name, entry in content["datasets"].items():
            run = read_run(artefact.path / suite / f"{name}.trec.gz", sha256=entry["run_file"]["sha256"])
            entry["recorded_run_file"] = write_run(place / suite / f"{name}.trec.gz", run.cut(depth))
    text = json.dumps(scores, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    (place / "scores.json").write_text(text, encoding="utf-8")


def _copy_reports(artefact: Artefact, place: Path, limit_kib: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(artefact.manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    (place / "manifest.json").write_text(text, encoding="utf-8")
    if artefact.stage == "run":  # its scores lie under runs/
        return
    for name, facts in artefact.manifest["files"].items():
        if any(fnmatch(name, pattern) for pattern in REPORTS) and facts["bytes"] <= limit_kib * 1024:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artefact.path / name, place / name)


def _machine_notes(artefacts: Iterable[Artefact]) -> list[str]:
    machines = set()
    for item in artefacts:
        hardware = item.manifest.get("hardware", {})
        devices = ", ".join(hardware.get("devices", []))
        parts = [hardware.get("processor", "unknown processor"), f"{hardware.get('cores', '?')} cores", devices]
        machines.add(", ".join(part for part in parts if part))
    return [f"Hardware: {machine}." for machine in sorted(machines)]


def _seed_text(runs: Mapping[tuple[str, int], Artefact]) -> str:
    arms: dict[str, list[int]] = {}
    for arm, seed in sorted(runs):
        arms.setdefault(arm, []).append(seed)
    if len({tuple(seeds) for seeds in arms.values()}) == 1:
        return ", ".join(map(str, next(iter(arms.values())))) + " for every arm"
    return "; ".join(f"{arm} {', '.join(map(str, seeds))}" for arm, seeds in arms.items())


def _hashes(root: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {p.relative_to(root).as_posix(): {"sha256": sha256_file(p), "bytes": p.stat().st_size} for p in files}


def _replace(work: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(work, out)
    shutil.rmtree(old, ignore_errors=True)


def copy_record(source: Path, target: Path) -> Record:
    """Copy a verified record (`vdr record`: outputs/<profile>/record → outputs/recorded/<profile>); replaces it
    whole."""
    record = open_record(source)
    target = Path(target)
    work = target.with_name(f".{target.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(record.root, work)
    _replace(work, target)
    return open_record(target)


def fingerprint(record: Record) -> str:
    """SHA-256 over the recorded run files: equal for two runs that ranked every query alike, with equal scores."""
    digest = hashlib.sha256()
    for name, facts in sorted(record.meta["files"].items()):
        if name.startswith("runs/") and name.endswith(".trec.gz"):
            digest.update(f"{name} {facts['sha256']}\n".encode())
    return digest.hexdigest()
