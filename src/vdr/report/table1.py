"""WT Table 1 beside the paper's: seeds, mean, seed-paired change and verdict of every arm on every suite.

Everything comes from a record's run files; the paper's columns come from `outputs/reference`. Each table is written
as CSV (columns exactly arm, suite, seed_…, mean, change, verdict, paper_mean, paper_change, paper_verdict), Markdown
and standalone HTML, with a pedigree file that names the runs behind every cell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.errors import BadInput
from vdr.evaluation.verdicts import summarise
from vdr.report.html import page
from vdr.report.record import Record, RunEntry
from vdr.report.reference import PaperTable1

__all__ = ["build_table", "cell_pedigree", "explain_cell", "overview", "render_text", "seed_columns", "write_table"]

TAIL = ["mean", "change", "verdict", "paper_mean", "paper_change", "paper_verdict"]


def build_table(
    scores: pd.DataFrame,
    *,
    arms: Sequence[str],
    suites: Sequence[str],
    paper: PaperTable1,
    paper_suites: Mapping[str, str],
    baseline: str = "baseline",
) -> pd.DataFrame:
    """The long table, one row an arm and suite in the order given; values unrounded, nDCG@5 × 100.

    scores: arm, suite, seed, value. paper_suites: the paper's suite that each suite stands for. A seed that an arm
    did not run is NaN. Raises BadInput when an arm has no run on a suite, or no baseline at one of its seeds.
    """
    wanted = scores[scores["arm"].isin([*arms, baseline]) & scores["suite"].isin(list(suites))]
    rows = (
        {(row.arm, row.suite): row for row in summarise(wanted, baseline).itertuples(index=False)}
        if len(wanted)
        else {}
    )
    missing = [f"{arm} on {suite}" for arm in arms for suite in suites if (arm, suite) not in rows]
    if missing:
        what = f"no run of {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise BadInput(what, where="scores", todo="run these arms first, or ask for fewer")
    seeds = sorted({seed for row in rows.values() for seed in row.seeds})
    table = []
    for arm in arms:
        for suite in suites:
            row, printed = rows[(arm, suite)], paper.get((arm, paper_suites.get(suite, suite)), {})
            by_seed = dict(zip(row.seeds, row.values, strict=True))
            change = printed.get("change")
            table.append(
                {"arm": arm, "suite": suite}
                | {f"seed_{seed}": by_seed.get(seed, math.nan) for seed in seeds}
                | {"mean": row.mean, "change": row.change, "verdict": row.verdict}
                | {"paper_mean": printed.get("mean", math.nan), "paper_change": math.nan if change is None else change}
                | {"paper_verdict": printed.get("verdict", "")}
            )
    return pd.DataFrame(table, columns=["arm", "suite", *(f"seed_{seed}" for seed in seeds), *TAIL])


def seed_columns(table: pd.DataFrame) -> list[str]:
    """The table's seed columns, in order."""
    return [name for name in table.columns if name.startswith("seed_")]


def _value(number: float) -> str:
    return "–" if pd.isna(number) else f"{number:.1f}"


def _change(number: float) -> str:
    # A change that rounds to 0.0 is printed without a sign, as in the paper.
    if pd.isna(number):
        return "–"
    return "0.0" if abs(number) < 0.05 else f"{number:+.1f}".replace("-", "−")


def _verdict(text: str) -> str:
    return text.replace("stable -", "stable −") or "–"


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text: one decimal, signs on changes, a dash where there is nothing."""
    shown = table.copy().astype(object)
    for name in [*seed_columns(table), "mean", "paper_mean"]:
        shown[name] = table[name].map(_value)
    for name in ("change", "paper_change"):
        shown[name] = table[name].map(_change)
    for name in ("verdict", "paper_verdict"):
        shown[name] = table[name].map(_verdict)
    return shown


def overview(table: pd.DataFrame) -> pd.DataFrame:
    """The paper's own layout, one row an arm: per suite `mean (paper's)`, then `change (paper's)` and the verdict."""
    shown, rows = printed(table), []
    for arm, group in shown.groupby("arm", sort=False):
        row: dict[str, str] = {"arm": str(arm)}
        for r in group.itertuples(index=False):
            row[f"{r.suite}"] = f"{r.mean} ({r.paper_mean})"
        for r in group.itertuples(index=False):
            row[f"Δ {r.suite}"] = "–" if r.change == "–" else f"{r.change} ({r.paper_change}) {r.verdict}"
        rows.append(row)
    return pd.DataFrame(rows)


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table of strings, padded so that it also reads as text."""
    widths = [max(len(str(x)) for x in [name, *frame[name]]) for name in frame.columns]
    lines = ["| " + " | ".join(str(n).ljust(w) for n, w in zip(frame.columns, widths, strict=True)) + " |"]
    lines.append("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    for row in frame.itertuples(index=False):
        lines.append("| " + " | ".join(str(x).ljust(w) for x, w in zip(row, widths, strict=True)) + " |")
    return "\n".join(lines)


def render_text(table: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """What is printed at the end of a run: means, then changes with verdicts (the paper's figures in brackets),
    notes."""
    frame = overview(table)
    changes = [name for name in frame.columns if name.startswith("Δ ")]
    parts = [
        "nDCG@5, seed means; in brackets the paper's figures",
        markdown(frame.drop(columns=changes)),
        "Δ: change against the baseline of the same seed, with the verdict over seeds",
        markdown(frame.loc[frame[changes[0]] != "–", ["arm", *changes]] if changes else frame),
        "\n".join(f"- {note}" for note in notes),
    ]
    return "\n\n".join(parts).rstrip()


def cell_pedigree(table: pd.DataFrame, record: Record, baseline: str = "baseline") -> dict[str, Any]:
    """{"runs", "cells"}: for every cell `arm/suite/column` the run and run files, the other cells, or the paper's
    table it was made from; for every run its artefact and everything upstream of it."""
    runs = {(run.arm, run.seed): run for run in record.runs}
    cells: dict[str, Any] = {}
    for row in table.to_dict("records"):
        arm, suite = row["arm"], row["suite"]
        own = []
        for column in seed_columns(table):
            run = runs.get((arm, int(column.removeprefix("seed_"))))
            if run is None or pd.isna(row[column]):
                continue
            name = f"{arm}/{suite}/{column}"
            own.append((name, f"{baseline}/{suite}/{column}"))
            cells[name] = {"value": row[column], "run": run.place, "run_files": _run_files(run, suite, record)}
        cells[f"{arm}/{suite}/mean"] = {"value": row["mean"], "mean_of": [name for name, _ in own]}
        if arm != baseline:
            pairs = [{"of": name, "minus": base} for name, base in own]
            cells[f"{arm}/{suite}/change"] = {"value": row["change"], "mean_of_differences": pairs}
            cells[f"{arm}/{suite}/verdict"] = {"value": row["verdict"], "signs_of_differences": pairs}
        for column, where in (
            ("paper_mean", "WT Table 1"),
            ("paper_change", "WT Table 1"),
            ("paper_verdict", "WT Table 1 for v2, Table 9 for v1 and v3"),
        ):
            if not (pd.isna(row[column]) or row[column] == ""):
                source = {"transcribed_from": where, "file": "outputs/reference/wt_tables.json"}
                cells[f"{arm}/{suite}/{column}"] = {"value": row[column], **source}
    made = {run.place: {"key": run.key, "directory": run.directory, "made_from": run.pedigree} for run in record.runs}
    return {"runs": made, "cells": cells}


def _run_files(run: RunEntry, suite: str, record: Record) -> dict[str, str]:
    prefix, files = f"{run.place}/{suite}/", record.meta["files"]
    return {name: files[name]["sha256"] for name in sorted(files) if name.startswith(prefix)}


def explain_cell(pedigree: Mapping[str, Any], arm: str, suite: str, column: str) -> str:
    """One cell of a pedigree in words, down to the run artefacts and what they were made from. BadInput for a cell
    that the table does not have."""
    cells, name = pedigree["cells"], f"{arm}/{suite}/{column}"
    if name not in cells:
        near = sorted(key for key in cells if key.startswith(f"{arm}/{suite}/")) or sorted(cells)[:6]
        raise BadInput(f"the table has no cell {name}", todo="cells: " + ", ".join(near))
    cell = cells[name]
    lines = [f"{name} = {cell['value']}"]
    if "transcribed_from" in cell:
        return "\n".join([*lines, f"  transcribed from {cell['transcribed_from']} ({cell['file']})"])
    parts = list(cell.get("mean_of", []))
    for pair in cell.get("mean_of_differences", cell.get("signs_of_differences", [])):
        lines.append(f"  {pair['of']} − {pair['minus']}")
        parts += [pair["of"], pair["minus"]]
    for part in dict.fromkeys(parts or [name]):
        run = pedigree["runs"][cells[part]["run"]]
        lines.append(f"  {part} = {cells[part]['value']}: run artefact {run['directory']}")
        lines += [f"    {file}" for file in cells[part]["run_files"]]
        for stage, artefacts in run["made_from"].items():
            lines += [f"    from {stage}: {item['directory']}" for item in artefacts]
    return "\n".join(lines)


def write_table(
    table: pd.DataFrame,
    record: Record,
    out: Path,
    *,
    name: str = "wt-table1",
    title: str = "Table 1: what each signal changes",
    figure: Path | None = None,
    baseline: str = "baseline",
) -> list[Path]:
    """Write `<name>.csv`, `.md`, `.html` and `.pedigree.json` into `out`; the same record gives the same bytes."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.{kind}" for kind in ("csv", "md", "html", "pedigree.json")]
    text = table.to_csv(index=False, float_format="%.4f", lineterminator="\n")
    _write(paths[0], text)
    body = [f"# {title}", "", render_text(table, record.notes), "", "## Every seed", "", markdown(printed(table)), ""]
    body += [f"The runs behind every cell: `{name}.pedigree.json`.", ""]
    _write(paths[1], "\n".join(body))
    _write(paths[2], page(title, table, overview(table), printed(table), record, figure, paths[3].name))
    pedigree = {"table": name, **cell_pedigree(table, record, baseline)}
    _write(paths[3], json.dumps(pedigree, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return paths


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
