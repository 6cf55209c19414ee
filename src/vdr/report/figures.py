"""Figures made from a record: plain matplotlib objects, the same bytes for the same record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from vdr.report.table1 import seed_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PALETTE", "change_figure", "save", "style"]

# Okabe and Ito's colours, told apart by readers with any kind of colour vision.
PALETTE = {"run": "#0072B2", "paper": "#D55E00", "third": "#009E73", "grey": "#6b7280"}


def style() -> None:
    """The look of every figure; headless. Called by each function here."""
    import matplotlib
    import seaborn as sns

    if "inline" not in matplotlib.get_backend():
        matplotlib.use("Agg")
    sns.set_theme(context="notebook", style="whitegrid", font="DejaVu Sans", font_scale=0.9)
    matplotlib.rcParams.update({"svg.hashsalt": "vdr", "axes.grid.axis": "y", "figure.dpi": 100, "savefig.dpi": 150})


def change_figure(
    table: pd.DataFrame, paper_seeds: pd.DataFrame | None = None, *, titles: dict[str, str] | None = None
) -> Figure:
    """Change per arm and suite: bars for the mean, a dot a seed; the paper's mean as a diamond, its seeds as rings.

    table: :func:`vdr.report.table1.build_table`'s. paper_seeds: arm, suite, change, one row a seed of the paper's, if
    known.
    """
    import matplotlib.pyplot as plt

    style()
    base = table[table["change"].isna()].set_index("suite")
    moved = table[table["change"].notna()]
    suites, arms = list(dict.fromkeys(moved["suite"])), list(dict.fromkeys(moved["arm"]))
    figure, axes = plt.subplots(1, len(suites), figsize=(2.2 + 2.5 * len(suites), 3.8), sharey=True, squeeze=False)
    for axis, suite in zip(axes[0], suites, strict=True):
        group = moved[moved["suite"] == suite].set_index("arm")
        for x, arm in enumerate(arms):
            if arm not in group.index:
                continue
            row = group.loc[arm]
            axis.bar(x - 0.2, row["change"], width=0.36, color=PALETTE["run"], alpha=0.35, zorder=2)
            deltas = [row[c] - base.loc[suite, c] for c in seed_columns(table) if pd.notna(row[c])]
            spread = [x - 0.2 + 0.09 * (i - (len(deltas) - 1) / 2) for i in range(len(deltas))]
            axis.scatter(spread, deltas, s=22, color=PALETTE["run"], zorder=4)
            if pd.notna(row["paper_change"]):
                axis.scatter(x + 0.22, row["paper_change"], marker="D", s=34, color=PALETTE["paper"], zorder=4)
            if paper_seeds is not None:
                own = paper_seeds[(paper_seeds["arm"] == arm) & (paper_seeds["suite"] == suite)]["change"].tolist()
                places = [x + 0.22 + 0.09 * (i - (len(own) - 1) / 2) for i in range(len(own))]
                axis.scatter(places, own, s=22, facecolors="none", edgecolors=PALETTE["paper"], zorder=3)
        axis.axhline(0, color="#111", linewidth=0.9, zorder=3)
        axis.set_xticks(range(len(arms)), arms)
        axis.set_title((titles or {}).get(suite, suite))
        axis.margins(x=0.08)
    axes[0][0].set_ylabel("change of nDCG@5, points")
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color=PALETTE["run"], label="this run: a seed (bar: mean)"),
        plt.Line2D([], [], marker="D", linestyle="", color=PALETTE["paper"], label="paper: mean"),
        plt.Line2D(
            [], [], marker="o", linestyle="", markerfacecolor="none", color=PALETTE["paper"], label="paper: a seed"
        ),
    ]
    figure.legend(handles=handles, loc="lower center", ncol=3, frameon=False, bbox_to_anchor=(0.5, -0.01))
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG or SVG by its suffix, without dates, and close the figure."""
    import matplotlib.pyplot as plt

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    beside = path.with_name(f".new-{path.name}")
    figure.savefig(beside, metadata=metadata)
    beside.replace(path)
    plt.close(figure)
    return path
