"""Tables and figures that a part of the package makes by its own command, rendered from what is kept of a run. Trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vdr.disk import writable_or_scratch
from vdr.errors import BadInput
from vdr.finish import as_shipped, not_run, recorded_place, rendered_place, unkept
from vdr.report.record import shown_path
from vdr.study.catalogue import Table

if TYPE_CHECKING:
    from vdr.pipeline import Study

__all__ = ["render_part"]


def render_part(study: Study, table: Table, *, recorded: bool) -> str:
    """The table as text; its files are written under the profile's outputs. Raises `BadInput` when there is no such run."""
    if recorded:
        as_shipped(study.profile)
    part = str(table.command).split()[0]
    return {"hac": _compression, "audit": _audit}[part](study, table, recorded)


def _compression(study: Study, table: Table, recorded: bool) -> str:
    from vdr.compression import reproduce as compression
    from vdr.compression.record import open_record

    profile = study.profile
    place = (compression.recorded_place if recorded else compression.record_place)(profile)
    _has(study, place / "record.json", table, recorded)
    return compression.render(open_record(place), table.name, rendered_place(study.profile) if recorded else profile.outputs)


def _audit(study: Study, table: Table, recorded: bool) -> str:
    from vdr.audit.report import TABLES, report_of

    made = None if recorded else study.steps.audit().find(study.store)
    place = recorded_place(study.profile) / "audit" if made is None else made.path
    if made is None and not recorded:
        raise not_run(study.profile, f"vdr {table.command}")
    _has(study, place / f"{TABLES[table.name]}.json", table, recorded)
    out = rendered_place(study.profile) if recorded else study.profile.outputs
    with writable_or_scratch(out) as (writable, kept):
        text, files = report_of(place, TABLES[table.name], writable, only=table.name, notes=[f"{study.profile.described()}."])
    return "\n".join([text, "", *([f"written   {file}" for file in files] if kept else [unkept(out)])])


def _has(study: Study, file: Path, table: Table, recorded: bool) -> None:
    if file.is_file():
        return
    if recorded:
        raise BadInput(f"the recorded run has no {table.name}", where=shown_path(file), todo=f"`vdr {table.command}` makes it")
    raise not_run(study.profile, f"vdr {table.command}")
