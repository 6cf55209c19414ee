"""Artefacts: one directory per result, named by the hash of what made it, with a manifest of its pedigree.

The key of an artefact is the SHA-256 of the canonical JSON of `{stage, version, config, inputs}`, where the inputs count by their
own keys; so a key names the whole history of a result. A stage writes into a work directory beside the final place, under a lock;
when its builder returns, files are hashed and flushed, the manifest is written and sealed with its own hash, and the directory is
renamed: under its final name an artefact is complete or absent. The work directory of a killed stage keeps its (stable) name and
is handed to the next attempt, so that a builder may go on from its own partial files; it is thrown away when the code has changed
meanwhile. Subdirectories called `partial` inside it are never published.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vdr import instructions, provenance
from vdr.disk import disk_errors, exclusive, sha256_file, sync_directory, sync_file, write_synced
from vdr.errors import BadInput, DamagedArtefact

__all__ = ["Artefact", "Inputs", "Keyed", "Store", "canonical_json", "load_artefact", "sha256_file", "stable_manifest"]

# 1 had no seal; such manifests are still read.
FORMAT = 2
SEAL = "seal"
MANIFEST = "manifest.json"
PARTIAL = "partial"
CODE = ".code"
# What may differ between two runs of the same thing; everything else in a manifest must not.
TIMES = ("started", "finished", "seconds", "peak_memory_mb")
VARYING = ("timing", "memory")

Builder = Callable[[Path, dict[str, Any]], None]
_verified: dict[tuple[str, int, int], str] = {}


@dataclass(frozen=True)
class Artefact:
    """A complete result on disk. `measures` is what its builder counted and timed."""

    stage: str
    key: str
    path: Path
    manifest: dict[str, Any] = field(repr=False, compare=False)

    @property
    def measures(self) -> dict[str, Any]:
        return dict(self.manifest.get("measures", {}))

    @property
    def label(self) -> str:
        return str(self.manifest.get("label", ""))

    def file(self, name: str) -> Path:
        """The path of one of its files; `DamagedArtefact` if the manifest does not list it."""
        if name not in self.manifest["files"]:
            raise DamagedArtefact(f"has no file {name!r}", where=self.path, todo="delete the directory and run again")
        return self.path / name


class Keyed(Protocol):
    """Anything with a key: an artefact, or a step that has yet to make one."""

    @property
    def key(self) -> str: ...


Inputs = Mapping[str, "Keyed | Sequence[Keyed]"]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces; refuses what has no one JSON form (NaN, sets, objects).

    Raises `BadInput` so that a configuration can never get a key that depends on the process that wrote it.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"not plain data: {error}", where="configuration of a stage") from error


def _fallbacks_since(before: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What a manifest says of native kernels whose plain twins had to answer; nothing where none had to."""
    counts = {name: count - before.get(name, 0) for name, count in provenance.fallbacks().items()}
    kept = {name: count or 1 for name, count in counts.items() if count or name.startswith("library:")}
    return {"fallbacks": kept} if kept else {}


def stable_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without times and memory (and without `timing` and `memory` in its measures): equal for equal runs."""
    kept = {name: value for name, value in manifest.items() if name not in (*TIMES, SEAL)}
    kept["measures"] = {name: value for name, value in manifest.get("measures", {}).items() if name not in VARYING}
    return kept


class Store:
    """The artefacts under one root (`outputs/<profile>/artefacts`)."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    # -- names ---------------------------------------------------------------------------------------------------------
    def key(self, stage: str, config: Mapping[str, Any], inputs: Inputs, version: int = 1) -> str:
        """Hex SHA-256 of the stage's canonical description."""
        described = {"stage": stage, "version": version, "config": config, "inputs": _input_keys(inputs)}
        if instructions.in_force() != instructions.DECLARED:  # other bytes; at the declared level a key says nothing of it
            described["instructions"] = instructions.in_force()
        return hashlib.sha256(canonical_json(described).encode("utf-8")).hexdigest()

    def place(self, stage: str, key: str, label: str = "") -> Path:
        """The final directory of an artefact."""
        return self.root / _plain(stage) / f"{_plain(label) + '-' if label else ''}{key[:16]}"

    # -- reading -------------------------------------------------------------------------------------------------------
    def find(
        self, stage: str, config: Mapping[str, Any], inputs: Inputs, version: int = 1, *, label: str = ""
    ) -> Artefact | None:
        """The artefact if it is there and whole, None if it is not there; builds nothing."""
        key = self.key(stage, config, inputs, version)
        path = self._existing(stage, key, label)
        return None if path is None else load_artefact(path, key)

    def holds(self, stage: str, key: str, label: str = "") -> bool:
        """Whether the artefact of that key is there; what is in it is not looked at."""
        return self._existing(stage, key, label) is not None

    def _existing(self, stage: str, key: str, label: str) -> Path | None:
        named = self.place(stage, key, label)
        if named.is_dir():
            return named
        # The label is for people: a result keeps its identity when a label was changed.
        matches = sorted(path for path in named.parent.glob(f"*{key[:16]}") if not path.name.startswith("."))
        return matches[0] if matches else None

    def artefacts(self, stage: str) -> list[Artefact]:
        """Every complete artefact of a stage, oldest first (hashes are not checked here)."""
        found = []
        for path in sorted((self.root / _plain(stage)).glob("*/" + MANIFEST)):
            if not path.parent.name.startswith("."):
                found.append(load_artefact(path.parent, verify=False))
        return sorted(found, key=lambda item: str(item.manifest.get("finished", "")))

    # -- making --------------------------------------------------------------------------------------------------------
    def make(
        self,
        stage: str,
        config: Mapping[str, Any],
        inputs: Inputs,
        build: Builder,
        *,
        version: int = 1,
        label: str = "",
    ) -> Artefact:
        """Return the artefact, building it first if need be.

        `build(directory, measures)` writes its files into the directory, which may hold what a killed attempt of the same code
        left there, and fills `measures` (plain data; put times under `measures["timing"]`).

        Raises `DamagedArtefact` (existing files differ from their manifest), `Busy` (another process builds this very artefact),
        `NoSpace` (disk full), and whatever the builder raises; in each case earlier artefacts are untouched.
        """
        found = self.find(stage, config, inputs, version, label=label)
        if found is not None:
            return found
        key = self.key(stage, config, inputs, version)
        final = self.place(stage, key, label)
        work = final.parent / f".tmp-{key[:16]}"
        with disk_errors(final.parent):
            try:
                final.parent.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError as error:  # with all parents made, only a file system that makes no folders says so
                raise BadInput("no folder can be made here", where=final.parent, todo="set VDR_OUTPUTS to another place") from error
            with exclusive(final.parent / f".lock-{key[:16]}", final):
                again = self.find(stage, config, inputs, version, label=label)
                if again is not None:  # the other writer finished between our look and our lock
                    return again
                self._prepare(work)
                manifest = self._build(stage, config, inputs, build, work, key, version, label)
                write_synced(work / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
                for directory, _, _ in os.walk(work):
                    sync_directory(Path(directory))
                os.rename(work, final)
                sync_directory(final.parent)
        return Artefact(stage, key, final, manifest)

    def _prepare(self, work: Path) -> None:
        marker = work / CODE
        code = provenance.source_hash()
        if work.exists() and (not marker.exists() or marker.read_text(encoding="utf-8") != code):
            shutil.rmtree(work)
        (work / PARTIAL).mkdir(parents=True, exist_ok=True)
        write_synced(marker, code)

    def _build(
        self,
        stage: str,
        config: Mapping[str, Any],
        inputs: Inputs,
        build: Builder,
        work: Path,
        key: str,
        version: int,
        label: str,
    ) -> dict[str, Any]:
        measures: dict[str, Any] = {}
        before = provenance.fallbacks()
        started = dt.datetime.now(dt.UTC)
        clock = time.perf_counter()
        provenance.reset_peak_memory()
        try:
            build(work, measures)
        except Exception as error:
            error.add_note(f"while building {stage} {label or key[:16]} in {work}")
            if isinstance(error, BadInput) and not any(path.is_file() for path in work.rglob("*") if path.name != CODE):
                shutil.rmtree(work)  # refused before anything was done: there is nothing to go on from
            raise
        seconds = time.perf_counter() - clock
        for left in (work / MANIFEST, work / CODE):  # a manifest is there when a process died between its two last steps
            left.unlink(missing_ok=True)
        for directory in sorted(work.rglob(PARTIAL)):
            if directory.is_dir():
                shutil.rmtree(directory)
        files = {}
        for path in sorted(item for item in work.rglob("*") if item.is_file()):
            sync_file(path)
            files[path.relative_to(work).as_posix()] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        if not files:
            raise BadInput("the stage wrote nothing", where=f"{stage} {label}".strip(), todo="this is a defect of the stage")
        manifest = {
            "format": FORMAT,
            "stage": stage,
            "label": label,
            "key": key,
            "version": version,
            "config": json.loads(canonical_json(config)),
            "inputs": _input_keys(inputs),
            "input_paths": _input_paths(inputs, self.root),
            "files": files,
            "measures": json.loads(canonical_json(measures)),
            "code": provenance.code(),
            "packages": provenance.packages(),
            "hardware": provenance.hardware(),
            **_fallbacks_since(before),
            "started": started.isoformat(timespec="milliseconds"),
            "finished": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "peak_memory_mb": provenance.peak_memory_mb(),
        }
        return {**manifest, SEAL: _seal(manifest)}

    def in_work(self) -> list[Path]:
        """Work directories that killed attempts left behind (they are used again by the next attempt)."""
        return sorted(self.root.glob("*/.tmp-*"))


def load_artefact(path: Path | str, key: str | None = None, *, verify: bool = True) -> Artefact:
    """Open an artefact's directory.

    Raises `DamagedArtefact` when the manifest is missing, unreadable, belongs to another key, does not hash to its own key or seal, or
    (with `verify`) when a file's size or SHA-256 differs. Hashes are computed once per file, size and time in a process.
    """
    path = Path(path)
    todo = f"delete {path} and run again, or restore the original"
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedArtefact("has no manifest.json", where=path, todo=todo) from error
    except (OSError, ValueError) as error:
        raise DamagedArtefact(f"unreadable manifest.json ({error})", where=path, todo=todo) from error
    try:
        stage, own_key, files = manifest["stage"], manifest["key"], manifest["files"]
        described = {name: manifest[name] for name in ("stage", "version", "config", "inputs")}
    except (KeyError, TypeError) as error:
        raise DamagedArtefact(f"manifest.json lacks {error}", where=path, todo=todo) from error
    if key is not None and own_key != key:
        raise DamagedArtefact(f"manifest.json names key {own_key[:16]}, expected {key[:16]}", where=path, todo=todo)
    if hashlib.sha256(canonical_json(described).encode("utf-8")).hexdigest() != own_key:
        raise DamagedArtefact("configuration and inputs in manifest.json do not hash to its key", where=path, todo=todo)
    if manifest.get("format") not in (1, FORMAT):
        raise DamagedArtefact(f"manifest.json is of format {manifest.get('format')!r}, known: 1, {FORMAT}", where=path, todo=todo)
    if manifest["format"] == FORMAT and manifest.get(SEAL) != _seal(manifest):
        raise DamagedArtefact("manifest.json does not hash to its seal", where=path, todo=todo)
    if verify:
        for name, facts in files.items():
            _verify(path / name, facts, todo)
    return Artefact(stage, own_key, path, manifest)


def _seal(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of everything else in a manifest: measures reach tables, so a changed one must not pass for what was measured."""
    return hashlib.sha256(canonical_json({name: value for name, value in manifest.items() if name != SEAL}).encode("utf-8")).hexdigest()


def _verify(path: Path, facts: Mapping[str, Any], todo: str) -> None:
    try:
        state = path.stat()
    except FileNotFoundError as error:
        raise DamagedArtefact("file is missing", where=path, todo=todo) from error
    if state.st_size != facts["bytes"]:
        raise DamagedArtefact(f"{state.st_size} bytes, the manifest says {facts['bytes']}", where=path, todo=todo)
    seen = (str(path.resolve()), state.st_size, state.st_mtime_ns)
    if seen not in _verified:
        _verified[seen] = sha256_file(path)
    if _verified[seen] != facts["sha256"]:
        raise DamagedArtefact(
            f"SHA-256 {_verified[seen][:12]}…, the manifest says {facts['sha256'][:12]}…", where=path, todo=todo
        )


def _input_keys(inputs: Inputs) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, value in inputs.items():
        keys[name] = [item.key for item in value] if isinstance(value, Sequence) else value.key
    return keys


def _input_paths(inputs: Inputs, root: Path) -> dict[str, Any]:
    def shown(item: Keyed) -> str:
        path = getattr(item, "path", None)
        if path is None:
            return item.key
        return os.path.relpath(path, root) if Path(path).is_relative_to(root) else Path(path).name

    return {
        name: [shown(item) for item in value] if isinstance(value, Sequence) else shown(value)
        for name, value in inputs.items()
    }


def _plain(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise BadInput(f"{name!r} is no name for a directory", todo="use letters, digits, '.', '_', '+' and '-'")
    return name
