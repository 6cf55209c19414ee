"""Chapter 04: pools, strata, N's negatives and S's targets, beside WT §5 to §7 and Tables 2, 5 and 14."""

from __future__ import annotations

from typing import Any

import pandas as pd

from vdr.errors import BadInput
from vdr.report.record import Record
from vdr.report.reference import wt_tables
from vdr.textfiles import measured_table

__all__ = ["entropy_table", "incompleteness_table", "negatives_table", "pool_table", "strata_table", "targets_table"]

# The controls of the paper's Table 2 under the names of this study's arms.
_TABLE2 = {
    "N": "N (teacher-judged)",
    "N-mined": "N-mined (ranks 1-4)",
    "N-rank": "N-rank (ranks 4-20)",
    "N-band": "N-band (ranks 21-100)",
    "N-perc-0.95": "N-perc (0.95)",
    "N-perc-matched": "N-perc (0.864, rate-matched)",
}


def pool_table(record: Record) -> pd.DataFrame:
    """What the miner found, and how the rating pass went: measure, value."""
    lines: dict[str, Any] = {}
    for stage in ("pools", "scored", "ratings"):
        for manifest in record.stages(stage):
            report = record.root / manifest["place"] / "report.json"
            if report.is_file():
                own = record.json(stage, "report.json", manifest["label"])
                lines |= {f"{stage}: {name.replace('_', ' ')}": value for name, value in own.items()}
    if not lines:
        raise BadInput("the record holds no pools", todo="record a run with an arm that mines")
    shown = [f"{v:g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v) for v in lines.values()]
    return pd.DataFrame({"measure": list(lines), "value": shown})


def incompleteness_table(record: Record) -> pd.DataFrame:
    """§6's sentences as numbers: statistic, this run, paper."""
    ours = measured_table(record.file("labels", "summary.csv")).set_index("statistic")["value"]
    paper = wt_tables()["labels"] | {
        "negatives_rated_relevant": wt_tables()["table14_strata"]["pooled_negatives_rated_relevant"]
    }
    names = {
        "median_relevant_per_query": "pages rated relevant a query, median (the labelled one left out)",
        "queries_with_none": "queries without any",
        "top1_rated_relevant": "first candidate rated relevant",
        "at_least_three_of_four": "three or four of the first four rated relevant",
        "backfill_needed_of_those": "… of those, N has to fill up",
        "negatives_rated_relevant": "N's negatives that are rated relevant",
    }
    rows = [(text, round(float(ours[name]), 3), paper[name]) for name, text in names.items()]
    return pd.DataFrame(rows, columns=["statistic", "this run", "paper"])


def strata_table(record: Record) -> pd.DataFrame:
    """Table 14: queries by how many of their first four candidates are rated relevant; the paper's figures in
    brackets."""
    paper = {
        key.split(" ")[0]: value for key, value in wt_tables()["table14_strata"].items() if isinstance(value, list)
    }
    rows = []
    for row in measured_table(record.file("labels", "by_stratum.csv")).itertuples(index=False):
        values = [row.share, row.backfill_share, row.negatives_relevant]
        printed = paper.get(row.stratum, [None] * 3)
        shown = [f"{v:.3f}" + ("" if p is None else f" ({p})") for v, p in zip(values, printed, strict=True)]
        rows.append((row.stratum, row.queries, *shown))
    head = ["stratum", "queries", "share", "back-fill fires", "negatives rated relevant, of four"]
    return pd.DataFrame(rows, columns=head)


def _reports(record: Record, part: str) -> dict[str, dict[str, Any]]:
    """The `part` of the first rows report of every arm that has it (targets are drawn anew each seed; the first
    seed's is shown)."""
    found: dict[str, dict[str, Any]] = {}
    for manifest in record.stages("rows"):
        report = record.json("rows", "report.json", manifest["label"])
        if part in report:
            found.setdefault(str(report["arm"]), report[part] | {"rows": report["rows"]})
    return found


def negatives_table(record: Record) -> pd.DataFrame:
    """Table 2's first column and Appendix O: for every arm that trains on negatives, how many of them are rated
    relevant."""
    paper = wt_tables()["table2_controls"]
    rows = []
    for arm, report in _reports(record, "negatives").items():
        printed = paper.get(_TABLE2.get(arm, ""), [None])
        rows.append(
            {
                "arm": arm,
                "negatives": report["negatives"],
                "rated relevant": _rounded(report["rated_relevant_share"]),
                "paper's": printed[0],
                "rows with back-fill": round(report["rows_with_backfill"] / report["rows"], 3),
                "median rank": report["median_rank"],
                "accepted beyond rank 10": _rounded(report["accepted_beyond_rank_10_share"]),
            }
        )
    return pd.DataFrame(rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def targets_table(record: Record) -> pd.DataFrame:
    """§7: the shape of S's targets, here and in the paper."""
    report = _target_report(record)
    shape, paper = report["shape"], wt_tables()["targets"]
    rows = [
        ("constant", shape["constant_share"], paper["constant_target_share"]),
        ("… all 0", shape["all_zero_share"], paper["all_zero"]),
        ("… all 1", shape["all_one_share"], paper["all_one"]),
        ("… another value", shape["other_constant_share"], paper["other_constant"]),
        ("all on one side of 0.5", shape["one_side_share"], paper["one_side_of_threshold_share"]),
        (
            "labelled page among the four",
            report["labelled_page_among_them_share"],
            paper["labelled_page_among_four_share"],
        ),
        (
            "another page rated 0.9 or more among them",
            report["another_page_rated_0.9_share"],
            paper["non_gold_ge_0.9_share"],
        ),
    ]
    table = pd.DataFrame(rows, columns=["share of rows whose four ratings are …", "this run", "paper"])
    return table.round(3)


def _target_report(record: Record) -> dict[str, Any]:
    reports = _reports(record, "targets")
    if "S" not in reports:
        raise BadInput("the record holds no rows of arm S", todo="record a run with arm S")
    return reports["S"]


def entropy_table(record: Record) -> pd.DataFrame:
    """Table 5: entropy of S's target by temperature, here and in the paper."""
    paper = {row[0]: row for row in wt_tables()["table5_target_entropy"]["rows"]}
    rows = []
    for line in _target_report(record)["entropy"]:
        printed = paper.get(line["temperature"], [None] * 4)
        rows.append(
            {
                "T": line["temperature"],
                "entropy": round(line["entropy"], 3),
                "paper's entropy": printed[1],
                "% of uniform": round(line["percent_of_uniform"], 1),
                "paper's %": printed[3],
            }
        )
    return pd.DataFrame(rows)
