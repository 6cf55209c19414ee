"""A fresh run beside the recorded one: the same, or by how much it differs in which cell."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from vdr.report.record import Record
from vdr.report.table1 import seed_columns

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """`cells`: arm, suite, column, fresh, recorded, difference (absolute), one row a cell of numbers; `keys`: runs
    made from the same settings, data and weights, and all;
    `run_files`: (equal ones, all); `verdicts`: arm, suite, fresh, recorded where they differ; `missing`: cells of one
    side."""

    cells: pd.DataFrame
    run_files: tuple[int, int]
    keys: tuple[int, int]
    verdicts: list[tuple[str, str, str, str]]
    missing: list[str]

    @property
    def identical(self) -> bool:
        """Every run file has the same bytes and every cell the same number."""
        same = self.run_files[0] == self.run_files[1] and not self.missing and not self.verdicts
        return same and bool((self.cells["difference"] == 0).all())

    def text(self, *, most: int = 5) -> str:
        """A few lines for a terminal: the verdict first, then the largest differences."""
        equal, every = self.run_files
        files = f"{equal} of {every} run files have the recorded bytes"
        if self.identical:
            return f"Fresh run against the recorded one: identical (all {every} run files and {len(self.cells)} cells)."
        lines = []
        if len(self.cells):
            worst = self.cells.loc[self.cells["difference"].idxmax()]
            lines.append(
                f"Fresh run against the recorded one: largest difference {worst.difference:.2f} points"
                f" ({worst.arm}, {worst.suite}, {worst.column}); {files}."
            )
        else:
            lines.append(f"Fresh run against the recorded one: no cell in common; {files}.")
        apart = self.cells[self.cells["difference"] > 0].nlargest(most, "difference")
        lines += [
            f"  {r.arm} {r.suite} {r.column}: {r.fresh:.2f}, recorded {r.recorded:.2f}"
            for r in apart.itertuples(index=False)
        ]
        lines += [f"  {arm} {suite}: verdict {new!r}, recorded {old!r}" for arm, suite, new, old in self.verdicts]
        if self.keys[0] < self.keys[1]:
            lines.append(
                f"  {self.keys[1] - self.keys[0]} of {self.keys[1]} runs were made from other settings, data or weights than"
                " the recorded ones, so they are not expected to be equal."
            )
        if self.missing:
            lines.append(
                f"  in one of the two only: {', '.join(self.missing[:most])}" + (" …" if self.missing[most:] else "")
            )
        return "\n".join(lines)


def compare(fresh: pd.DataFrame, recorded: pd.DataFrame, records: tuple[Record, Record] | None = None) -> Comparison:
    """Compare two long tables (:func:`vdr.report.table1.build_table`) and, with `records` (fresh, recorded), their
    run files."""
    sides = [table.set_index(["arm", "suite"]) for table in (fresh, recorded)]
    columns = [list(dict.fromkeys([*seed_columns(table), "mean", "change"])) for table in (fresh, recorded)]
    numbers = [
        {(*index, c): float(row[c]) for index, row in side.iterrows() for c in names if pd.notna(row[c])}
        for side, names in zip(sides, columns, strict=True)
    ]
    rows = [
        (*cell, numbers[0][cell], numbers[1][cell], abs(numbers[0][cell] - numbers[1][cell]))
        for cell in numbers[0]
        if cell in numbers[1]
    ]
    missing = ["/".join(cell) for cell in [*numbers[0], *numbers[1]] if not (cell in numbers[0] and cell in numbers[1])]
    shared = [index for index in sides[0].index if index in sides[1].index]
    verdicts = [
        (*index, str(sides[0].loc[index, "verdict"]), str(sides[1].loc[index, "verdict"]))
        for index in shared
        if sides[0].loc[index, "verdict"] != sides[1].loc[index, "verdict"]
    ]
    cells = pd.DataFrame(rows, columns=["arm", "suite", "column", "fresh", "recorded", "difference"])
    return Comparison(cells, _equal_files(records), _equal_keys(records), verdicts, missing)


def _equal_files(records: tuple[Record, Record] | None) -> tuple[int, int]:
    if records is None:
        return (0, 0)
    left, right = (
        {name: facts["sha256"] for name, facts in r.meta["files"].items() if name.endswith(".trec.gz")} for r in records
    )
    names = set(left) | set(right)
    return sum(left.get(name) == right.get(name) for name in names), len(names)


def _equal_keys(records: tuple[Record, Record] | None) -> tuple[int, int]:
    if records is None:
        return (0, 0)
    left, right = ({(run.arm, run.seed): run.key for run in record.runs} for record in records)
    shared = set(left) & set(right)
    return sum(left[name] == right[name] for name in shared), len(shared)
