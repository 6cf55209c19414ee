"""Steps: what would make an artefact, and from what. Keys are known before anything has run, so a plan costs nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vdr.disk import human_bytes
from vdr.progress import clock, note
from vdr.store import Artefact, Store, canonical_json

__all__ = ["Made", "Step", "make", "order", "plan_lines", "planned"]

# A builder gets its work directory, the dict of measures, and the artefacts of its inputs by name.
Made = Mapping[str, Any]
StepBuilder = Callable[[Path, dict[str, Any], Made], None]


@dataclass(frozen=True, eq=False)
class Step:
    """One artefact to be: stage, label for people, configuration, inputs, and the function that builds it.

    `optional` inputs do not exist; an input is a step or a tuple of steps. `version` is raised by hand when a stage's code changes
    what it writes for one configuration.
    """

    stage: str
    label: str
    config: Mapping[str, Any]
    inputs: Mapping[str, Step | tuple[Step, ...]] = field(default_factory=dict)
    build: StepBuilder = field(default=lambda out, measures, made: None, repr=False)
    version: int = 1

    @functools.cached_property
    def key(self) -> str:
        """The key of the artefact that this step makes."""
        return Store(Path()).key(self.stage, self.config, self.inputs, self.version)

    @property
    def name(self) -> str:
        return f"{self.stage} {self.label}".strip()

    def parents(self) -> Iterator[Step]:
        for value in self.inputs.values():
            if isinstance(value, Step):
                yield value
            else:
                yield from value

    def find(self, store: Store) -> Artefact | None:
        """Its artefact, if it is there and whole."""
        return store.find(self.stage, self.config, self.inputs, self.version, label=self.label)

    def whole(self, store: Store) -> bool:
        """Whether its artefact and every one behind it are there (hashes are checked when one is used)."""
        return all(store.holds(step.stage, step.key, step.label) for step in order(self))


def order(*targets: Step) -> list[Step]:
    """The steps that the targets need, each once (by key), inputs first."""
    seen: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.key in seen:
            return
        for parent in step.parents():
            visit(parent)
        seen.setdefault(step.key, step)

    for target in targets:
        visit(target)
    return list(seen.values())


def make(step: Step, store: Store, *, quiet: bool = False) -> Artefact:
    """The step's artefact, building it and whatever it needs. What is there already is verified and used.

    What is missing behind an artefact that is there is made again too: a result without its pedigree could be neither traced nor
    recorded. Raises what `Store.make` raises; finished steps stay.
    """
    found = step.find(store)
    if found is not None and step.whole(store):
        return found
    made: dict[str, Any] = {}
    for name, value in step.inputs.items():
        made[name] = make(value, store, quiet=quiet) if isinstance(value, Step) else [make(v, store, quiet=quiet) for v in value]
    if found is not None:
        return found
    if not quiet:
        note(f"-- {step.name}")
    artefact = store.make(
        step.stage,
        step.config,
        made,
        lambda out, measures: step.build(out, measures, made),
        version=step.version,
        label=step.label,
    )
    if not quiet:
        note(f"   {step.name}: {clock(artefact.manifest['seconds'])}")
    return artefact


@dataclass(frozen=True)
class Planned:
    """A step in a plan: `state` is cached, partial or to run; `seconds` and `size` (bytes) are those of its artefact, else of
    the last one like it (`source`: where that was made), None where there is none."""

    step: Step
    state: str
    seconds: float | None
    size: int | None
    source: str
    why: str


def planned(store: Store, *targets: Step, recorded: Iterable[Mapping[str, Any]] = ()) -> list[Planned]:
    """What would run and what is cached, inputs first. Reads manifests only (hashes are checked when a step is used).

    `recorded`: manifests of a recorded run, which say how long a stage took there where it was never made here.
    """
    elsewhere: dict[str, list[Mapping[str, Any]]] = {}
    for manifest in recorded:
        elsewhere.setdefault(str(manifest["stage"]), []).append(manifest)
    rows = []
    for step in order(*targets):
        place = store.place(step.stage, step.key, step.label)
        earlier = store.artefacts(step.stage)
        same = [item for item in earlier if item.key == step.key]
        if same:
            rows.append(_row(step, "cached", same[-1].manifest, "took", place.name))
            continue
        alike = [item for item in earlier if item.label == step.label]
        there = elsewhere.get(step.stage, [])
        last, source = (
            (alike[-1].manifest, "last time") if alike
            else (earlier[-1].manifest, "last time") if earlier
            else next(((item, "recorded") for item in there if item.get("label", "") == step.label), (None, ""))
        )  # fmt: skip
        state = "partial" if (place.parent / f".tmp-{step.key[:16]}").exists() else "to run"
        why = _difference(step, alike[-1]) if alike else "never made"
        rows.append(_row(step, state, last, source, why))
    return rows


def _row(step: Step, state: str, manifest: Mapping[str, Any] | None, source: str, why: str) -> Planned:
    if manifest is None:
        return Planned(step, state, None, None, source, why)
    size = sum(int(facts["bytes"]) for facts in manifest["files"].values())
    return Planned(step, state, manifest.get("seconds"), size, source, why)


def _difference(step: Step, earlier: Artefact) -> str:
    """Why an earlier artefact of the same label does not serve: the first thing in which it differs."""
    old = earlier.manifest
    if old["version"] != step.version:
        return "the stage's code has a new version"
    for name, value in step.inputs.items():
        keys = [item.key for item in value] if isinstance(value, tuple) else value.key
        if old["inputs"].get(name) != keys:
            return f"its input {name} is another one"
    path = _first_difference(old["config"], step.config)
    return f"setting {path} differs" if path else "its inputs differ"


def _first_difference(old: Any, new: Any, path: str = "") -> str:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(set(old) | set(new)):
            inner = f"{path}.{name}" if path else str(name)
            if name not in old or name not in new:
                return inner
            found = _first_difference(old[name], new[name], inner)
            if found:
                return found
        return ""
    return "" if canonical_json(old) == canonical_json(new) else path


def plan_lines(rows: list[Planned]) -> list[str]:
    """The plan as text, one line a step, with a sum at the end."""
    lines = []
    width = max([len(row.step.name) for row in rows] + [4])
    for row in rows:
        took = "" if row.seconds is None else f"{row.source} {clock(row.seconds)}"
        size = "" if row.size is None else human_bytes(row.size)
        lines.append(f"{row.state:8} {row.step.name:{width}}  {took:20} {size:>9}  {row.why}".rstrip())
    to_run = [row for row in rows if row.state != "cached"]
    known = [row for row in to_run if row.seconds is not None]
    total = ""
    if known:
        total = f"; these took {clock(sum(row.seconds or 0 for row in known))} one after another"
        total += " in the recorded run" if all(row.source == "recorded" for row in known) else " when last made"
        total += f" and {human_bytes(sum(row.size or 0 for row in known))} of disk"
        total += f" ({len(to_run) - len(known)} unknown)" if len(known) < len(to_run) else ""
    lines.append(f"{len(rows) - len(to_run)} cached, {len(to_run)} to run{total}")
    return lines
