"""Collecting a record from a run's artefacts, and keeping a copy of it with the code (form: :mod:`vdr.report.record`)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vdr.corpus.qrels import write_qrels
from vdr.errors import BadInput, Busy
from vdr.evaluation.evaluate import load_scores
from vdr.evaluation.run_files import read_run, write_run
from vdr.report.record import FORMAT, Record, open_record, shown_path
from vdr.store import Artefact, load_artefact, sha256_file

__all__ = ["collect", "copy_record", "fallback_notes", "upstream"]

PARTS = {"record.json", "runs", "qrels", "stages", "corpus", "weights", "tables", "figures"}
REPORTS = ("*.json", "*.csv", "samples/*.png")


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
    with _alone(out) as work:
        work.mkdir()
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
            "notes": [*notes, *fallback_notes(everything.values()), *_machine_notes(everything.values()), f"Seeds: {_seed_text(runs)}."],
            "runs": entries,
            "files": _hashes(work),
        }
        text = json.dumps(meta, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        (work / "record.json").write_text(text, encoding="utf-8")
        _replace(work, out)
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


def fallback_notes(artefacts: Iterable[Artefact]) -> list[str]:
    """One line for native kernels that did not serve, so that their plain twins made some artefacts; nothing otherwise."""
    by_kernel: dict[str, list[str]] = {}
    for item in artefacts:
        for kernel in item.manifest.get("fallbacks", {}):
            by_kernel.setdefault(kernel, []).append(f"{item.stage} {item.path.name}")
    return [
        f"FALLBACK: {kernel} was not used, its plain twin made {', '.join(sorted(made)[:3])}"
        f"{f' and {len(made) - 3} more' if made[3:] else ''}."
        for kernel, made in sorted(by_kernel.items())
    ]


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


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[Path]:
    """An empty place beside `out` to build its successor in, for one process at a time (Busy for a second one)."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.with_name(f".{out.name}.new")
    with out.with_name(f".{out.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy("another process is writing this record", where=shown_path(out), todo="wait for it") from None
        shutil.rmtree(work, ignore_errors=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


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
    with _alone(target) as work:
        shutil.copytree(record.root, work)
        for other in target.iterdir() if target.is_dir() else ():
            if other.name not in PARTS:
                (shutil.copytree if other.is_dir() else shutil.copyfile)(other, work / other.name)
        _replace(work, target)
    return open_record(target)
