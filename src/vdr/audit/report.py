"""WT Tables 4 and 13, EV Table 6 and the audit's figures, from `analysis.json` and `evidence.json` alone.

The papers' figures stand beside this run's, for comparison; they are read from `outputs/reference` and never typed in
here. A result of *simulated* annotators says so in every table, file and figure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.audit.analysis import write_result
from vdr.audit.evidence import NO_MAJORITY
from vdr.audit.figures import write_figures
from vdr.audit.scales import TIERS
from vdr.errors import BadInput
from vdr.study.settings import repository_root

__all__ = [
    "SIMULATED_NOTE",
    "TABLES",
    "papers_figures",
    "render_text",
    "report_of",
    "table4",
    "table6",
    "table13_annotators",
    "table13_pairings",
    "write_report",
]

SIMULATED_NOTE = "SIMULATED annotators, drawn from the corpus's known truth: no human judgement is in these figures."
TABLES = {
    "wt-table4": "analysis",
    "wt-table13": "analysis",
    "ev-table6": "evidence",
}  # and the result each is made from
Reference = Mapping[str, Any]
LEFT_OUT = {
    "precision": "precision",
    "miss": "miss rate",
    "relevant_per_query": "relevant per query",
    "kappa_margin": "teacher's κ above the annotators' mean",
}


def papers_figures(what: str) -> Reference:
    """The paper's figures for a result: WT's tables for `relevance`, EV's for `evidence`. Raises `BadInput` when they are missing."""
    path = (
        repository_root() / "outputs" / "reference" / ("evie_tables.json" if what == "evidence" else "wt_tables.json")
    )
    if not path.is_file():
        raise BadInput(
            "the papers' figures are missing", where=path, todo="restore outputs/reference from the repository"
        )
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _percent(value: float | None, digits: int = 0) -> str:
    return "–" if value is None or value != value else f"{100 * value:.{digits}f}%"


def _plain(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or value != value else f"{value:.{digits}f}"


def _kappa(value: float | None) -> str:
    return "undefined" if value is None or value != value else f"{value:.2f}"


def _interval(figure: Mapping[str, Any], *, percent: bool) -> str:
    low, high = figure.get("low"), figure.get("high")
    if low is None or high is None:
        return ""
    return f"[{100 * low:.0f}, {100 * high:.0f}]" if percent else f"[{low:.2f}, {high:.2f}]"


def _wt(name: str, reference: Reference | None) -> Any:
    if reference is None:
        return None
    if name not in reference:
        raise BadInput(f"the papers' figures have no {name!r}", where="outputs/reference/wt_tables.json")
    return reference[name]


def table4(result: Mapping[str, Any], reference: Reference | None = None) -> pd.DataFrame:
    """WT Table 4: figure, value, interval, n, and the paper's value, interval and n where `reference`
    (wt_tables.json) is given."""
    head, paper = result["headline"], _wt("table4_audit", reference) or {}
    shown = head["relevant_per_query"]["of"] or "those shown"
    rows = [
        ("precision of protection", "precision", "precision_of_protection", True),
        ("on specific queries", "precision_specific", "on_specific_queries", True),
        ("on broad queries", "precision_broad", "on_broad_queries", True),
        ("miss rate", "miss", "miss_rate", True),
        ("teacher–human κ", "teacher_human_kappa", "teacher_human_kappa", False),
        (
            f"human–human κ (mean of {head['human_human_kappa']['pairings']} pairings)",
            "human_human_kappa",
            "human_human_kappa_mean_of_10",
            False,
        ),
        ("range across pairings", "range", "kappa_range", False),
        (f"relevant pages per query, of {shown}", "relevant_per_query", "relevant_per_query_of_four", False),
    ]
    table = []
    for label, name, paper_name, percent in rows:
        known = paper.get(paper_name)
        if name == "range":
            human = head["human_human_kappa"]
            ends_of = [human["lowest"], human["highest"]]
            value = "undefined" if None in ends_of else f"{ends_of[0]:.2f} to {ends_of[1]:.2f}"
            interval, n = "", None
            printed = "" if known is None else f"{known[0]:.2f} to {known[1]:.2f}"
            paper_interval, paper_n = "", None
        else:
            if name not in head:
                continue
            figure = head[name]
            show = _percent if percent else _kappa if name.endswith("kappa") else _plain
            value = show(figure["value"])
            interval, n = _interval(figure, percent=percent), figure["n"]
            printed = "" if known is None else (_percent(known[0]) if percent else _plain(known[0]))
            ends = {"low": known[1], "high": known[2]} if known is not None and len(known) >= 3 else {}
            paper_interval = _interval(ends, percent=percent)
            paper_n = known[-1] if known is not None and len(known) in (2, 4) else None
        table.append((label, value, interval, n, printed, paper_interval, paper_n))
    columns = ["figure", "value", "interval", "n", "paper", "paper_interval", "paper_n"]
    made = pd.DataFrame(table, columns=columns).astype({"n": "Int64", "paper_n": "Int64"})
    return made if reference is not None else made[columns[:4]]


def table13_annotators(result: Mapping[str, Any], reference: Reference | None = None) -> pd.DataFrame:
    """WT Table 13, left: rater, med. s, x, rel., vs. teacher, gold; the paper's own raters are other people and stand
    apart."""
    rows = [
        (
            row["annotator"] + ("*" if row["outlier"] else ""),
            _plain(row["median_seconds"], 0),
            _percent(row["cannot_judge"], 1),
            _percent(row["relevant"]),
            _percent(row["agrees_with_teacher"]),
            f"{row['gold_relevant']}/{row['gold_judged']}",
        )
        for row in result["annotators"]
    ]
    table = pd.DataFrame(rows, columns=["rater", "med. s", "x", "rel.", "vs. teacher", "gold"])
    paper = _wt("table13_raters", reference)
    if paper is not None and len(paper) == len(table):
        table["paper: med. s"] = [_plain(row[1], 0) for row in paper]
        table["paper: x"] = [_percent(row[2], 1) for row in paper]
        table["paper: rel."] = [_percent(row[3]) for row in paper]
        table["paper: vs. teacher"] = [_percent(row[4]) for row in paper]
        table["paper: gold"] = [row[5] for row in paper]
    return table


def table13_pairings(result: Mapping[str, Any], reference: Reference | None = None) -> pd.DataFrame:
    """WT Table 13, right: pairing, n, κ ("undefined" where both gave one and the same answer throughout)."""
    rows = [(f"{row['a']}–{row['b']}", row["n"], _kappa(row["kappa"])) for row in result["pairings"]]
    table = pd.DataFrame(rows, columns=["pairing", "n", "κ"])
    paper = _wt("table13_pairings", reference)
    if paper is not None:
        known = {tuple(sorted(name.replace("–", "-").split("-"))): (n, kappa) for name, n, kappa in paper}
        pairs = [known.get(tuple(sorted(name.split("–")))) for name in table["pairing"]]
        table["paper: n"] = ["" if pair is None else str(pair[0]) for pair in pairs]
        table["paper: κ"] = ["" if pair is None else _plain(pair[1]) for pair in pairs]
    return table


def table6(result: Mapping[str, Any], reference: Reference | None = None) -> pd.DataFrame:
    """EV Table 6: judge tier against majority label, percent of the tier, with a Wilson interval of the diagonal."""
    rows = []
    agreement = (reference or {}).get("table6_judge_audit", {}).get("agreement", {})
    for tier in TIERS:
        row = result["tiers"][tier]
        shares = {label: _percent(row["shares"][label], 2) for label in (*TIERS, NO_MAJORITY)}
        paper = agreement.get("no" if tier == "none" else tier)
        interval = "" if row["low"] is None else f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        rows.append({"judge": tier, "n": row["candidates"], **shares, "agreement interval": interval})
        if reference is not None:
            rows[-1]["paper: agreement"] = _percent(paper, 2)
    return pd.DataFrame(rows)


def _markdown(table: pd.DataFrame) -> str:
    cells = [[("" if pd.isna(v) else str(v)) for v in row] for row in table.astype(object).to_numpy()]
    head = [str(column) for column in table.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells])


def _text(table: pd.DataFrame) -> str:
    return table.astype(object).where(table.notna(), "").to_string(index=False)


def _notes(result: Mapping[str, Any]) -> list[str]:
    notes = [SIMULATED_NOTE] if result["simulated"] else []
    if result["partial"]:
        notes.append(f"PARTIAL: {result['missing']} judgements are missing.")
    return notes


def _statements(result: Mapping[str, Any]) -> list[str]:
    """The prose figures of WT §8 and App. K."""
    head, lines = result["headline"], []
    relevant = head["relevant_per_query"]
    lines.append(
        f"Relevant per query: {_plain(relevant['value'])} over {relevant['n']} views of {relevant['clusters']} queries; "
        f"{relevant['views_dropped']} views with an x dropped; the interval "
        f"{'exceeds' if relevant['exceeds_one'] else 'does not exceed'} one."
    )
    for row in result["thresholds"]:
        lines.append(
            f"Cut {row['cut']}: precision {_percent(row['precision']['value'])}, miss {_percent(row['miss']['value'])}."
        )
    hedge = result["hedge"]
    lines.append(f"At exactly the hedge value: {_percent(hedge['value'])} relevant ({hedge['n']} judgements).")
    post_hoc = result["post_hoc"].get("hedge_by_breadth")
    if post_hoc:
        with_hedge, without = post_hoc["hedge"], post_hoc["no_hedge"]
        lines.append(
            f"Post hoc: broad are {with_hedge['broad']} of {with_hedge['queries']} queries with a hedge and "
            f"{without['broad']} of {without['queries']} without; Fisher's exact p = {_plain(post_hoc['p'], 3)}."
        )
    if result["leave_one_out"]:
        for name, label in LEFT_OUT.items():
            values = [row[name] for row in result["leave_one_out"] if row[name] is not None]
            if values:
                lines.append(f"Leaving one annotator out, {label}: {min(values):.2f} to {max(values):.2f}.")
    undefined = head["human_human_kappa"]["undefined"]
    if undefined:
        lines.append(f"No κ (one and the same answer throughout): {', '.join(undefined)}.")
    outliers = [row["annotator"] for row in result["annotators"] if row["outlier"]]
    if outliers:
        lines.append(
            f"* relevant share beyond three median absolute deviations: {', '.join(outliers)}. Nobody is excluded."
        )
    return lines


def _tables(result: Mapping[str, Any], reference: Reference | None) -> dict[str, tuple[str, dict[str, pd.DataFrame]]]:
    """Table name → (title, parts)."""
    if result["what"] == "evidence":
        return {
            "ev-table6": ("EV Table 6: the judge's tiers against people's majority", {"": table6(result, reference)})
        }
    return {
        "wt-table4": ("WT Table 4: how far the teacher can be trusted", {"": table4(result, reference)}),
        "wt-table13": (
            "WT Table 13: per annotator and per pairing",
            {"annotators": table13_annotators(result, reference), "pairings": table13_pairings(result, reference)},
        ),
    }


def render_text(result: Mapping[str, Any], reference: Reference | None = None, notes: Sequence[str] = ()) -> str:
    """All tables of a result for a terminal, after what a reader has to know: `notes` and the result's own."""
    lines = [*notes, *_notes(result)]
    for title, parts in _tables(result, reference).values():
        lines += ["", title]
        for table in parts.values():
            lines += ["", _text(table)]
    if result["what"] == "relevance":
        lines += ["", *_statements(result)]
    else:
        among, judge = _kappa(result["fleiss_kappa"]), _kappa(result["judge_human_kappa"])
        lines += ["", f"Fleiss' κ among annotators {among}; Cohen's κ of judge against majority {judge}."]
        if "judge" in result:
            lines.append(f"The judge: {result['judge']}.")
    return "\n".join(lines)


def write_report(
    result: Mapping[str, Any],
    out: Path,
    *,
    reference: Reference | None = None,
    recovery: Path | None = None,
    only: str | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write tables (`.csv`, `.md`), figures (`.png`) and the result (`.json`) into `out`; the same result gives the
    same bytes.

    Files of *simulated* annotators carry the word in their names. `only` names one table; `notes` stand above each.
    `recovery` is a folder with recovery.csv and coverage.csv of a simulated study. Returns the paths. Raises `BadInput`
    for an unknown table.
    """
    out = Path(out)
    tables = _tables(result, reference)
    if only is not None and only not in tables:
        raise BadInput(f"this audit makes no {only}", where="audit report", todo=f"it makes {', '.join(tables)}")
    figures, out = out / "figures", out / "tables"
    for folder in (out, figures):
        folder.mkdir(parents=True, exist_ok=True)
    mark = "-simulated" if result["simulated"] else ""
    written = [out / f"audit-{result['what']}{mark}.json"]
    write_result(written[0], dict(result))
    for name, (title, parts) in tables.items():
        if only not in (None, name):
            continue
        body = [f"# {title}{' (simulated)' if mark else ''}", "", *[f"**{note}**\n" for note in (*notes, *_notes(result))]]
        for part, table in parts.items():
            file = out / f"{name}{'-' + part if part else ''}{mark}.csv"
            marked = table.assign(annotators="simulated") if mark else table
            marked.to_csv(file, index=False, lineterminator="\n")
            written.append(file)
            body += [_markdown(table), ""]
        if result["what"] == "relevance":
            body += [f"- {line}" for line in _statements(result)]
        file = out / f"{name}{mark}.md"
        file.write_text("\n".join(body) + "\n", encoding="utf-8")
        written.append(file)
    return written + write_figures(result, figures, mark=mark, recovery=recovery)


def report_of(
    folder: Path, name: str, out: Path, *, only: str | None = None, notes: Sequence[str] = ()
) -> tuple[str, list[Path]]:
    """A kept result (`analysis` or `evidence`) of a simulated study's folder: its text, and its files written into `out`."""
    result = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    reference = papers_figures(result["what"])
    files = write_report(result, out, reference=reference, recovery=folder, only=only, notes=notes)
    return render_text(result, reference, notes), files
