"""From a record to its tables and figures: what `vdr table1`, `make table1` and the notebooks call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from vdr.evaluation.verdicts import paired_changes
from vdr.report.claims import check_claims, write_claims
from vdr.report.compare import Comparison, compare
from vdr.report.figures import change_figure, save
from vdr.report.record import Record, open_record
from vdr.report.reference import paper_table1, wt_runs
from vdr.report.table1 import build_table, render_text, write_table
from vdr.study.catalogue import load_suites, load_tables

__all__ = ["Table1", "compare_records", "findings", "make_table1", "table1_of", "titles"]


@dataclass(frozen=True)
class Table1:
    """A finished Table 1: the long table, the record it was made from, and the paper's seed-paired changes."""

    table: pd.DataFrame
    record: Record
    paper_seeds: pd.DataFrame

    def text(self) -> str:
        """The table for a terminal, the paper's figures in brackets."""
        return render_text(self.table, self.record.notes)


def titles() -> dict[str, str]:
    """Suite name → its name and its overlap with the training corpus (WT Appendix C), as figures show them."""
    overlap = {
        name: "in domain" if suite.in_domain else "partly in domain" if suite.in_domain_datasets else "out of domain"
        for name, suite in load_suites().items()
    }
    return {name: f"{name}\n{text}" for name, text in overlap.items()}


def table1_of(record: Record, table: str = "wt-table1") -> Table1:
    """Build a Table-1-like table of the study's catalogue from a record; the suites are the record's own.

    Raises BadInput for an unknown table and for runs that the record lacks, DamagedArtefact when scores and run files
    differ.
    """
    entry = load_tables()[table]
    scores = record.scores()
    scores = scores[scores["recipe"] == (entry.recipe or record.meta["recipe"])]
    present = list(dict.fromkeys(scores["suite"]))
    suites = [suite for suite in (entry.suites or tuple(load_suites())) if suite in present]
    stands_for = {name: suite.paper_suite for name, suite in load_suites().items()}
    built = build_table(
        scores,
        arms=entry.arms,
        suites=suites or list(entry.suites),
        paper=paper_table1(),
        paper_suites=stands_for,
        baseline=entry.baseline,
    )
    runs = wt_runs()
    runs = runs[(runs["recipe"] == "three_epochs") & runs["arm"].isin(entry.arms)]
    back = {paper: name for name, paper in stands_for.items()}
    seeds = paired_changes(runs, entry.baseline).dropna(subset=["change"])
    return Table1(built, record, seeds.assign(suite=seeds["suite"].map(back)))


def findings(made: Table1) -> str:
    """What the table says, in sentences made from its numbers: signs and stability of every arm's changes beside the
    paper's, the arms' order on the out-of-domain suites, and how far seeds of one arm lie apart."""
    table, lines = made.table, []
    moved = table[table["change"].notna()]
    for arm, group in moved.groupby("arm", sort=False):
        known = group[group["paper_change"].notna()]
        same = int((known["change"].gt(0) == known["paper_change"].gt(0)).sum())
        stable = [f"{r.verdict} on {r.suite}" for r in group.itertuples() if r.verdict.startswith("stable")]
        lines.append(
            f"{arm}: {', '.join(stable) or 'stable on no suite'}; the mean change has the paper's sign on {same} of {len(known)}"
            " suites."
        )
    outside = [name for name, suite in load_suites().items() if not suite.in_domain and not suite.in_domain_datasets]
    for suite in (name for name in outside if name in set(moved["suite"])):
        group = moved[moved["suite"] == suite]
        orders = [" > ".join(group.sort_values(c, ascending=False)["arm"]) for c in ("change", "paper_change")]
        lines.append(f"Order of the mean changes on {suite}: {orders[0]}; in the paper: {orders[1]}.")
    base = table[table["change"].isna()].set_index("suite")
    seeds = [c for c in table.columns if c.startswith("seed_")]
    spread = moved.apply(
        lambda r: (r[seeds] - base.loc[r["suite"], seeds]).astype(float).agg(lambda d: d.max() - d.min()), axis=1
    )
    worst = moved.loc[spread.idxmax()]
    lines.append(
        f"The seeds' changes of one arm lie up to {spread.max():.1f} points apart ({worst['arm']} on {worst['suite']}),"
        f" {spread.median():.1f} in the median."
    )
    return "\n".join(lines)


def make_table1(record: Path | str, out: Path | str, *, table: str = "wt-table1") -> Table1:
    """Render a record's table into `<out>/tables` and its figure into `<out>/figures`; returns what was made.

    The verdicts on the paper's claims are written beside the table (`wt-claims.csv`).

    The same record gives the same bytes. Raises what :func:`open_record` and :func:`table1_of` raise; nothing is
    written then.
    """
    made = table1_of(open_record(record), table)
    figure = save(
        change_figure(made.table, made.paper_seeds, titles=titles()), Path(out) / "figures" / f"{table}-changes.png"
    )
    entry = load_tables()[table]
    title = f"{entry.paper} {entry.kind.title()} {entry.number}: {entry.title}"
    write_table(
        made.table, made.record, Path(out) / "tables", name=table, title=title, figure=figure, baseline=entry.baseline
    )
    # the table was computed from the run files just now, and the recorded scores are equal
    write_claims(check_claims(made.record, recompute=False), Path(out) / "tables")
    return made


def compare_records(fresh: Path | str, recorded: Path | str, *, table: str = "wt-table1") -> Comparison:
    """How a fresh record's table and run files compare with a recorded one's."""
    records = open_record(fresh), open_record(recorded)
    tables = [table1_of(record, table).table for record in records]
    return compare(tables[0], tables[1], records=records)
