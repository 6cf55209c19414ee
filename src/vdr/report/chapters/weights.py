"""Chapters 02 and 03: how well the miniature's backbone reads, and how well its teacher judges (WT §7, §8, Appendix
B)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from vdr.report.figures import style
from vdr.report.record import Record
from vdr.report.reference import wt_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "accuracy_table",
    "flat",
    "loss_figure",
    "reading_figure",
    "report_of",
    "report_table",
    "truth_table",
]


def report_of(record: Record, weights: str) -> dict[str, Any]:
    """The report that ships beside the weights `backbone` or `teacher`."""
    return dict(json.loads(record.extra(f"weights/{weights}/report.json").read_text(encoding="utf-8")))


def flat(report: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested numbers under dotted names; lists and long texts are left out."""
    lines: dict[str, Any] = {}
    for name, value in report.items():
        if isinstance(value, Mapping):
            lines |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float, str)) and len(str(value)) < 80:
            lines[f"{prefix}{name}"] = round(value, 4) if isinstance(value, float) else value
    return lines


def report_table(record: Record, weights: str, begins: str = "") -> pd.DataFrame:
    """A report as a table: measure, value (those whose name begins with `begins`)."""
    lines = {name: value for name, value in flat(report_of(record, weights)).items() if name.startswith(begins)}
    return pd.DataFrame({"measure": list(lines), "value": list(lines.values())}).astype({"value": object})


def loss_figure(record: Record, weights: str) -> Figure:
    """The loss curves in `loss.csv` beside the weights: one line a column after `step`, on a logarithmic axis."""
    import matplotlib.pyplot as plt

    style()
    table = pd.read_csv(record.extra(f"weights/{weights}/loss.csv"))
    step = table.columns[0]
    figure, axis = plt.subplots(figsize=(7, 3.4))
    for name in table.columns[1:]:
        values = pd.to_numeric(table[name], errors="coerce")
        if values.notna().any() and (values.dropna() > 0).all():
            window = max(len(table) // 40, 1)
            axis.plot(table[step], values.rolling(window, min_periods=1).mean(), label=name)
    axis.set_yscale("log")
    axis.set_xlabel(step)
    axis.set_ylabel("loss (running mean)")
    axis.legend(frameon=False, ncol=2, fontsize=8)
    figure.tight_layout()
    return figure


def reading_figure(record: Record, weights: str = "backbone", most: int = 3) -> Figure:
    """Pages the backbone never saw, what stands on them, and what it read: the report's `examples`."""
    import matplotlib.pyplot as plt

    style()
    examples = report_of(record, weights)["examples"][:most]
    figure, axes = plt.subplots(1, 2 * len(examples), figsize=(5.2 * len(examples), 3.8), squeeze=False)
    for i, example in enumerate(examples):
        page, text = axes[0][2 * i], axes[0][2 * i + 1]
        page.imshow(plt.imread(record.extra(f"weights/{weights}/{example['page']}")), interpolation="nearest")
        page.set_axis_off()
        text.set_axis_off()
        text.text(0, 1, example["read"], va="top", family="DejaVu Sans Mono", fontsize=6.5, transform=text.transAxes)
        text.set_title("read", fontsize=9, loc="left")
    figure.tight_layout()
    return figure


def truth_table(record: Record) -> pd.DataFrame:
    """The teacher against the truth over mined candidates (`labels/truth.csv`), one column a set of candidates."""
    table = pd.read_csv(record.file("labels", "truth.csv")).set_index("candidates").T
    return table.rename_axis("measure").reset_index().round(3)


def accuracy_table(record: Record) -> pd.DataFrame:
    """Table 4's first rows over ranks 1 to 4: precision of protection (by breadth of the query) and miss rate, here
    by the known truth, in the paper by annotators."""
    ours = pd.read_csv(record.file("labels", "truth.csv")).set_index("candidates")
    paper = wt_tables()["table4_audit"]
    wanted = [
        ("precision of protection", "ranks 1-4", "precision", paper["precision_of_protection"]),
        ("… on specific queries", "ranks 1-4, specific", "precision", paper["on_specific_queries"]),
        ("… on broad queries", "ranks 1-4, broad", "precision", paper["on_broad_queries"]),
        ("miss rate", "ranks 1-4", "miss_rate", paper["miss_rate"]),
    ]
    rows = [
        {
            "measure": name,
            "this run (truth)": round(float(ours.loc[which, measure]), 3) if which in ours.index else None,
            "paper (annotators)": printed[0],
            "95 % interval": f"{printed[1]:.2f} to {printed[2]:.2f}",
        }
        for name, which, measure, printed in wanted
    ]
    true = ours.loc["ranks 1-4", "true_share"] * 4
    relevant = paper["relevant_per_query_of_four"]
    rows.append(
        {
            "measure": "relevant pages among a query's first four",
            "this run (truth)": round(float(true), 2),
            "paper (annotators)": relevant[0],
            "95 % interval": f"{relevant[1]:.2f} to {relevant[2]:.2f}",
        }
    )
    return pd.DataFrame(rows)
