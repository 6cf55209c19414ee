"""Chapters 02 and 03: how well the miniature's backbone reads, and how well its teacher judges (WT §7, §8, Appendix
B)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from vdr.report.figures import PALETTE, style
from vdr.report.record import Record
from vdr.report.reference import wt_tables
from vdr.textfiles import measured_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "accuracy_table",
    "flat",
    "loss_figure",
    "page_figure",
    "reading_figure",
    "replies_table",
    "report_of",
    "report_table",
    "truth_table",
]


_NO_CURVE = {"epoch", "seconds", "learning_rate", "lr", "grad_norm"}
_SHARE = re.compile("auc|accuracy|right|recall|share")


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
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in lines.values()]
    return pd.DataFrame({"measure": list(lines), "value": shown})


def loss_figure(record: Record, weights: str) -> Figure:
    """The curves in `loss.csv` beside the weights: a panel of losses (logarithmic), one for each `stage` where it has that
    column, and one of the shares and areas that were measured on the way. Losses of different `task`s are told apart; one
    that was logged only at the first step of a part makes no curve. The first column is the step."""
    import matplotlib.pyplot as plt

    style()
    table = measured_table(record.extra(f"weights/{weights}/loss.csv"))
    step = table.columns[0]
    stages = dict(list(table.groupby("stage", sort=False))) if "stage" in table else {"losses": table}
    numbers = [n for n in table.columns[1:] if pd.api.types.is_numeric_dtype(table[n]) and n not in _NO_CURVE]
    shares = [name for name in numbers if _SHARE.search(name)]
    count = len(stages) + bool(shares)
    figure, axes = plt.subplots(1, count, figsize=(5.4 * count, 3.6), squeeze=False)
    for axis, (stage, part) in zip(axes[0], stages.items(), strict=False):
        tasks = dict(list(part.groupby("task", sort=False))) if "task" in part else {"": part}
        least = 3 if len(tasks) > 1 else 1  # a task met only where a part begins
        for task, own in tasks.items():
            for name in (n for n in numbers if n not in shares and own[n].notna().sum() >= least):
                axis.plot(own[step], own[name], ".-", label=f"{task} {name}".strip().replace("_", " "))
        axis.set(yscale="log", xlabel=step, ylabel="loss", title=str(stage))
        axis.legend(frameon=False, fontsize=8)
    for name in shares:
        known = table[table[name].notna()]
        axes[0][-1].plot(known[step], known[name], ".-", label=name.replace("_", " "))
    if shares:
        axes[0][-1].set(xlabel=step, ylabel="share or area", ylim=(0, 1.02), title="measured on the way")
        axes[0][-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def reading_figure(record: Record, weights: str = "backbone", most: int = 3) -> Figure:
    """Pages the backbone never saw, each above what it read at every image token (blue where it is right, red where
    not)."""
    import matplotlib.pyplot as plt

    style()
    examples = report_of(record, weights)["examples"][:most]
    figure, axes = plt.subplots(2, len(examples), figsize=(5.2 * len(examples), 5.8), squeeze=False)
    for (page, text), example in zip(axes.T, examples, strict=True):
        image = plt.imread(record.extra(f"weights/{weights}/{example['page']}"))
        page.imshow(image, interpolation="nearest", cmap="gray")
        page.set_axis_off()
        truth, read = example["truth"].split(" | "), example["read"].split(" | ")
        columns = max(round((len(read) * image.shape[1] / image.shape[0]) ** 0.5), 1)
        # A token holds up to four words side by side and above one another; their order within it is not read.
        good = [sorted(a.split()) == sorted(b.split()) for a, b in zip(truth, read, strict=True)]
        for at, word in enumerate(read):
            colour, words = PALETTE["run" if good[at] else "paper"], word.replace(" ", "\n")
            place = (at % columns + 0.5, at // columns + 0.5)
            text.text(*place, words, color=colour, fontsize=6.5, ha="center", va="center", linespacing=0.95)
        text.set(xlim=(0, columns), ylim=(-(-len(read) // columns), 0), xticks=range(columns + 1), yticks=[])
        text.set_xticklabels([])
        text.set_title(f"read: {sum(good)} of {len(read)} image tokens right", fontsize=9)
    figure.tight_layout()
    return figure


def replies_table(record: Record, weights: str = "teacher", most: int = 8) -> pd.DataFrame:
    """What the teacher answered to the first example's queries: query, reply."""
    example = report_of(record, weights)["examples"][0]
    return pd.DataFrame({"query": example["queries"], "reply": example["replies"]}).head(most)


def page_figure(record: Record, weights: str = "teacher") -> Figure:
    """The first example's page."""
    import matplotlib.pyplot as plt

    style()
    example = report_of(record, weights)["examples"][0]
    figure, axis = plt.subplots(figsize=(4.2, 3.2))
    axis.imshow(plt.imread(record.extra(f"weights/{weights}/{example['page']}")), interpolation="nearest", cmap="gray")
    axis.set_axis_off()
    figure.tight_layout()
    return figure


def truth_table(record: Record) -> pd.DataFrame:
    """The teacher against the truth over mined candidates (`labels/truth.csv`), one column a set of candidates."""
    table = measured_table(record.file("labels", "truth.csv")).set_index("candidates").T
    return table.rename_axis("measure").reset_index().round(3)


def accuracy_table(record: Record) -> pd.DataFrame:
    """Table 4's first rows over ranks 1 to 4: precision of protection (by breadth of the query) and miss rate, here
    by the known truth, in the paper by annotators."""
    ours = measured_table(record.file("labels", "truth.csv")).set_index("candidates")
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
