"""From a profile to EV's tables and figures: make what is missing, collect the record, render."""

from __future__ import annotations

import shutil
from pathlib import Path

from vdr.compression.figures import FIGURES, make_figure
from vdr.compression.record import EvRecord, collect, open_record
from vdr.compression.report import TABLES, make_table, write_table
from vdr.compression.steps import CompressionSteps
from vdr.disk import writable_or_scratch
from vdr.errors import BadInput, did_you_mean
from vdr.finish import as_shipped, rendered_place, unkept
from vdr.graph import Step, make
from vdr.progress import note
from vdr.report.collect import fallback_notes, upstream
from vdr.report.figures import save
from vdr.steps import Steps
from vdr.store import Artefact, Store
from vdr.study.settings import Profile, outputs_root, repository_root

__all__ = ["keep", "make_record", "record_place", "recorded_place", "render", "reproduce", "steps_of"]

#: What needs other encoders than the student, and what needs more than scores.
_TRANSFERRED = ("ev-table18",)
_SERVING, _CASES = "serving", "cases"
_BESIDE = {_SERVING: ("ev-table12",), _CASES: ("ev-figure8",)}


def record_place(profile: Profile) -> Path:
    """The compression record of a profile's own run."""
    return profile.outputs / "ev"


def recorded_place(profile: Profile) -> Path:
    """Where the recorded run's lies with the code."""
    return repository_root() / "outputs" / "recorded" / profile.name / "ev"


def known_names(name: str) -> list[str]:
    """Tables and figures behind a name; ``all`` is every one. Raises BadInput for an unknown name."""
    every = [*TABLES, *FIGURES]
    if name == "all":
        return every
    if name not in every:
        raise BadInput(f"unknown EV table or figure {name!r}", where="name", todo=did_you_mean(name, [*every, "all"]))
    return [name]


def make_record(profile: Profile, names: list[str]) -> EvRecord:
    """Make the artefacts that some tables and figures need (what is there is used) and collect them into the record.

    Parts made for other tables before stay in the record as long as their artefacts fit the profile's settings.
    """
    from vdr.pipeline import prepare_process

    prepare_process(profile)
    store = Store(profile.artefacts)
    found: dict[str, Artefact | None] = {name: make(step, store) for name, step in steps_of(profile, names).items()}
    for name, step in steps_of(profile, [*TABLES, *FIGURES], whole=False).items():
        found.setdefault(name, step.find(store) if step.whole(store) else None)
    made = {name: artefact for name, artefact in found.items() if artefact is not None}
    scores = {name: artefact for name, artefact in made.items() if name not in (_SERVING, _CASES)}
    behind = {key: item for artefact in made.values() for key, item in upstream(artefact, store.root).items()}
    return collect(record_place(profile), profile.compression, scores, made.get(_SERVING), made.get(_CASES), profile=profile.name,
                   notes=[*_notes(profile), *fallback_notes(behind.values())], machine=_machine())


def steps_of(profile: Profile, names: list[str], steps: Steps | None = None, *, whole: bool = True) -> dict[str, Step]:
    """What some tables and figures are made from: scores by encoder, and `serving` and `cases` where they are needed.

    Without `whole` the encoders that this profile cannot encode suites with are left out instead of raising `BadInput`.
    """
    own = CompressionSteps(profile, steps)
    encoders = profile.compression.transfer if set(names) & set(_TRANSFERRED) else ()
    found = {name: own.scores(name) for name in dict.fromkeys(["student", *encoders]) if whole or own.encodes(name)}
    return found | {name: getattr(own, name)() for name, wanted in _BESIDE.items() if set(names) & set(wanted)}


def _notes(profile: Profile) -> list[str]:
    lines = [f"{profile.described()}: {profile.title}; arm {profile.compression.arm}, seed {profile.compression.seed}, "
             f"recipe {profile.recipe}. One training seed: differences say nothing about seeds."]
    if profile.models.backbone.startswith("vdr:"):
        lines.append("Pages, queries and judgements are drawn by this package, models are trained from scratch at small size: "
                     "the figures are not comparable with the paper's in height, only in direction.")
    return lines


def _machine() -> dict[str, object]:
    import os

    from vdr.kernels import native

    name = "unknown"
    try:
        with open("/proc/cpuinfo") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return {"processor": name, "cores": len(os.sched_getaffinity(0)), "native_kernels": native.library() is not None,
            "threads": native.threads()}


def render(record: EvRecord, name: str, out: Path) -> str:
    """Write one table or figure of a record under ``out`` and return what is printed."""
    with writable_or_scratch(out) as (writable, kept):
        if name in TABLES:
            table = make_table(record, name)
            places = write_table(table, record, writable / "tables")
            written = [f"written   {_shown(p)}" for p in places] if kept else [unkept(out)]
            return table.text() + "\n\n" + "\n".join([*record.notes, *written])
        place = save(make_figure(record, name), writable / "figures" / f"{name}.png")
        return "\n".join([f"{name}: {_shown(Path(place)) if kept else unkept(out)}", *record.notes])


def _shown(path: Path) -> str:
    root = repository_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def reproduce(profile: Profile, name: str, *, recorded: bool = False) -> str:
    """Everything behind ``name`` (or ``all``): artefacts, record, table or figure. ``recorded`` renders the recorded run alone."""
    names = known_names(name)
    if recorded:
        as_shipped(profile)
        record, out = open_record(recorded_place(profile)), rendered_place(profile)
    else:
        record, out = make_record(profile, names), profile.outputs
    parts = []
    for one in names:
        note(f"-- {one}")
        parts.append(render(record, one, out))
    return "\n\n".join(parts)


def keep(profile: Profile) -> str:
    """Copy the profile's record to where it is kept with the code, with its tables and figures rendered beside it."""
    as_shipped(profile, "vdr hac record")
    source, target = record_place(profile), recorded_place(profile)
    open_record(source)
    if target.is_relative_to(outputs_root()) and target == source:
        raise BadInput("the record is already there", where=target)
    work = target.with_name(".ev.new")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)
    record = open_record(target)
    for name in [*TABLES, *FIGURES]:
        try:
            render(record, name, target.parent)
        except BadInput as error:  # a part that this record was made without
            note(f"   {name}: {error}")
    return _shown(target)
