"""From finished runs to what a reader sees: record, notebook, table, figure, comparison with the recorded run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vdr.corpus.access import load_suites, load_train
from vdr.disk import writable_or_scratch
from vdr.errors import BadInput, VdrError
from vdr.models.weights import locate
from vdr.progress import note
from vdr.report.claims import check_claims, claims_text, write_claims
from vdr.report.collect import collect, copy_record
from vdr.report.gallery import asset_files, corpus_files
from vdr.report.make import compare_records, make_table1
from vdr.report.notebooks import parameters_of, run_notebook
from vdr.report.record import open_record, shown_path
from vdr.sameness import compare_artefacts, recorded_manifests
from vdr.store import Artefact
from vdr.study.catalogue import Table, load_arms, load_tables
from vdr.study.settings import Profile, outputs_root, repository_root

__all__ = ["claims", "finish", "keep", "recorded_place", "render", "rendered_place"]


def recorded_place(profile: Profile) -> Path:
    """Where a profile's recorded run lies with the code; no setting moves it."""
    return repository_root() / "outputs" / "recorded" / profile.name


def record_place(profile: Profile) -> Path:
    """The record of a profile's own run."""
    return profile.outputs / "record"


def rendered_place(profile: Profile) -> Path:
    """Where tables and figures of the recorded run are rendered to."""
    return outputs_root() / profile.name / "from-recorded"


def not_run(profile: Profile, command: str) -> BadInput:
    """The error for results that these settings do not have."""
    recorded = not profile.changes and (recorded_place(profile) / "record.json").exists()
    todo = f"`{command}` with the same settings makes it{', and --recorded shows the recorded run' if recorded else ''}"
    return BadInput(f"not run: {profile.described()}", where=shown_path(profile.outputs), todo=todo)


def as_shipped(profile: Profile, what: str = "--recorded") -> None:
    """`BadInput` where something is asked of the recorded run with settings that it was not made with."""
    if profile.changes:
        raise BadInput(f"the recorded run has the settings as shipped, asked for: {profile.described()}", where=what,
                       todo="leave out --set, and name a profile that ships")  # fmt: skip


def unkept(out: Path) -> str:
    """What is said in place of files' names where they could not be written."""
    return f"no files: {out} cannot be written"


def finish(
    profile: Profile,
    table: Table,
    recipe: str,
    runs: Mapping[tuple[str, int], Artefact],
    corpus: Artefact,
    extra: Iterable[Artefact] = (),
    behind: Iterable[Artefact] = (),
) -> str:
    """Collect the record, execute the table's notebook, and return what is printed: the table, its places, the comparison.

    `behind`: every artefact behind the runs, in the order they were made; they are compared with the recorded ones.
    """
    record = record_place(profile)
    datasets = [data for data in load_suites(corpus.path) if data.suite in profile.suites]
    collect(
        record,
        runs,
        datasets,
        store_root=profile.artefacts,
        profile=profile.name,
        recipe=recipe,
        notes=notes_of(profile, table),
        depth=profile.report.recorded_depth,
        file_limit_kib=profile.report.file_limit_kib,
        extra=extra,
        more=corpus_files(load_train(corpus.path), datasets) | asset_files(_weights(profile)),
    )
    made = make_table1(record, profile.outputs, table=table.name)
    lines = [made.text(), ""]
    if table.notebook is not None:
        executed = _execute(profile, table, record)
        lines.append(f"notebook  {shown_path(executed)}")
    lines += [f"table     {shown_path(profile.outputs / 'tables' / (table.name + suffix))}" for suffix in (".csv", ".md", ".html")]
    lines.append(f"claims    {shown_path(profile.outputs / 'tables' / 'wt-claims.csv')} (vdr claims)")
    lines += [f"figure    {shown_path(path)}" for path in sorted((profile.outputs / "figures").glob(f"{table.name}*"))]
    lines += [f"record    {shown_path(record)} (the runs behind every cell: vdr trace ARM SUITE)", ""]
    lines.append(_compared(profile, table, record, behind))
    return "\n".join(lines)


def _weights(profile: Profile) -> dict[str, Path]:
    """The directories of the weights that ship with the package, whose reports the chapters show."""
    sources = {"backbone": profile.models.backbone, "teacher": profile.models.teacher}
    return {name: locate(source) for name, source in sources.items() if source.startswith("vdr:")}


def _execute(profile: Profile, table: Table, record: Path) -> Path:
    source = repository_root() / "notebooks" / str(table.notebook)
    own = {"record": str(record), "out": str(profile.outputs), "table": table.name, **table.parameters}
    known = parameters_of(source)
    given: dict[str, Any] = {name: value for name, value in own.items() if name in known or name in table.parameters}
    note(f"-- notebook {source.name}")
    target = profile.outputs / "notebooks" / source.name
    return run_notebook(source, target, given, timeout_s=profile.report.notebook_timeout_s)


def _compared(profile: Profile, table: Table, record: Path, artefacts: Iterable[Artefact]) -> str:
    recorded = recorded_place(profile)
    if profile.changes:
        return f"Not compared with the recorded run, which has other settings. This is: {profile.described()}."
    if not (recorded / "record.json").exists():
        return f"There is no recorded run of profile {profile.name} to compare with."
    try:
        text = compare_records(record, recorded, table=table.name).text()
        return "\n".join([text, *compare_artefacts(artefacts, recorded_manifests(recorded)).lines()])
    except VdrError as error:  # the fresh run is whole whatever became of the recorded one
        return f"The recorded run could not be compared with: {error}"


def notes_of(profile: Profile, table: Table) -> list[str]:
    """What a reader of any table of this profile has to know: its size, its models, and what is not a teacher's judgement."""
    lines = [f"{profile.described()}: {profile.title}."]
    lines.append(f"Student from {profile.models.backbone}; ratings, maps and descriptions by {profile.models.teacher}.")
    if profile.corpus.sources:
        lines.append("Corpus simulated: pages and queries are drawn by this package; each suite stands for the paper's of that name.")
    oracle = [name for name in table.arms if load_arms()[name].ratings == "oracle" and load_arms()[name].uses_ratings]
    if oracle:
        lines.append(f"ORACLE: {', '.join(oracle)} read the corpus's truth in place of the teacher's ratings.")
    return lines


def render(profile: Profile, table: Table, *, recorded: bool = False) -> str:
    """The table as text from a record; its files are written under the profile's outputs.

    Raises `BadInput` when there is no record yet.
    """
    place, out = _places(profile, table.name, recorded=recorded)
    with writable_or_scratch(out) as (writable, kept):
        made = make_table1(place, writable, table=table.name)
    files = f"table     {shown_path(out / 'tables' / (table.name + '.md'))} (also .csv, .html)"
    return f"{made.text()}\n\n{files if kept else unkept(out)}"


def claims(profile: Profile, *, recorded: bool = False) -> str:
    """WT's claims on a record, with the figures that decide them; also written beside the tables. `BadInput` without a record."""
    place, out = _places(profile, "wt-table1", recorded=recorded)
    verdicts = check_claims(open_record(place))
    with writable_or_scratch(out) as (writable, kept):
        write_claims(verdicts, writable / "tables")
    files = f"claims    {shown_path(out / 'tables' / 'wt-claims.csv')}"
    return f"{claims_text(verdicts)}\n\n{files if kept else unkept(out)}"


def _places(profile: Profile, table: str, *, recorded: bool) -> tuple[Path, Path]:
    """The record to read and the directory to write into. Raises `BadInput` when there is no record yet."""
    if recorded:
        as_shipped(profile)
    place = recorded_place(profile) if recorded else record_place(profile)
    if not (place / "record.json").exists():
        if recorded:
            raise BadInput("there is no recorded run", where=shown_path(place), todo="run `vdr record` after a finished run")
        raise not_run(profile, f"vdr reproduce {table}")
    return place, rendered_place(profile) if recorded else profile.outputs


def keep(profile: Profile, out: Path | None = None) -> str:
    """Copy the profile's record to `outputs/recorded/<profile>` (or `out`), and render its tables there."""
    if out is None:
        as_shipped(profile, "vdr record")
    target = recorded_place(profile) if out is None else out
    kept = copy_record(record_place(profile), target)
    arms = {run.arm for run in kept.runs}
    for table in load_tables().values():
        if table.arms and arms >= {table.baseline, *table.arms}:
            make_table1(target, target, table=table.name)
    return f"recorded {len(kept.runs)} runs in {shown_path(target)}"
