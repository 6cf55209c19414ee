"""The audit's figures: κ by pair, precision by threshold, leave-one-out, agreement by tier, and what a *simulated*
study recovers."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vdr.audit.scales import TIERS
from vdr.textfiles import measured_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "kappa_figure", "leave_one_out_figure", "recovery_figure", "threshold_figure", "tier_figure", "write_figures",
]  # fmt: skip

# Okabe and Ito's colours, told apart by readers with any kind of colour vision.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6b7280"


def _axes(rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.4, 3.8)) -> tuple[Figure, np.ndarray]:
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure without pyplot (no global state, no window) that a notebook shows by itself, at half the file's size."""

        def _repr_png_(self) -> bytes:
            handle = io.BytesIO()
            self.savefig(handle, format="png", dpi=80, metadata={"Software": None})
            return handle.getvalue()

    figure = Shown(figsize=size, layout="constrained", dpi=150)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(axis="y", color="#dde1e6", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def _mark(axis: Axes, simulated: bool, height: float = 1.015) -> None:
    if simulated:
        axis.text(
            1.0, height, "simulated annotators", transform=axis.transAxes, ha="right", va="bottom", color=ORANGE,
            fontsize=8, fontweight="bold",
        )  # fmt: skip


def kappa_figure(result: Mapping[str, Any]) -> Figure:
    """κ of every pairing, sorted, with the mean and the teacher's pooled κ and interval."""
    pairs = pd.DataFrame(result["pairings"]).dropna(subset="kappa").sort_values("kappa", kind="stable")
    head = result["headline"]
    figure, axes = _axes(size=(6.8, 3.9))
    axis = axes[0, 0]
    axis.bar(range(len(pairs)), pairs["kappa"], color=BLUE, width=0.6)
    axis.set_xticks(
        range(len(pairs)), [f"{row.a}–{row.b}\nn={row.n}" for row in pairs.itertuples()], fontsize=7, rotation=35
    )
    axis.axhline(0, color=GREY, linewidth=0.8)
    mean, teacher = head["human_human_kappa"]["value"], head["teacher_human_kappa"]
    if mean is not None:
        axis.axhline(mean, color=BLUE, linestyle="--", label=f"annotators, mean {mean:.2f}")
    if teacher["value"] is not None:
        axis.axhline(teacher["value"], color=ORANGE, label=f"teacher–annotators, pooled {teacher['value']:.2f}")
        if teacher["low"] is not None:
            axis.axhspan(teacher["low"], teacher["high"], color=ORANGE, alpha=0.12, linewidth=0)
    axis.set_ylabel("Cohen's κ (relevant or not)")
    axis.legend(frameon=False, fontsize=8, loc="upper left")
    axis.set_title("Agreement by pairing", loc="left", fontsize=10)
    _mark(axis, result["simulated"])
    return figure


def threshold_figure(result: Mapping[str, Any]) -> Figure:
    """Precision of protection and miss rate at every rating that occurs, with intervals."""
    figure, axes = _axes()
    axis = axes[0, 0]
    for name, colour, label in (("precision", BLUE, "precision of protection"), ("miss", ORANGE, "miss rate")):
        points = [(row["cut"], row[name]) for row in result["curve"] if row[name]["value"] is not None]
        if not points:
            continue
        x = [cut for cut, _ in points]
        axis.plot(x, [p["value"] for _, p in points], marker="o", markersize=3.5, color=colour, label=label)
        ends = [(cut, p["low"], p["high"]) for cut, p in points if p["low"] is not None]
        if ends:
            axis.fill_between(*zip(*ends, strict=True), color=colour, alpha=0.15, linewidth=0)
    axis.axvline(0.5, color=GREY, linestyle=":", linewidth=1)
    axis.set(xlabel="cut on the teacher's rating (≥)", ylabel="share judged relevant", ylim=(0, 1))
    axis.legend(frameon=False, fontsize=8)
    axis.set_title("What a higher cut buys", loc="left", fontsize=10)
    _mark(axis, result["simulated"])
    return figure


def leave_one_out_figure(result: Mapping[str, Any]) -> Figure:
    """Each headline figure with one annotator dropped, against the figure of all and its interval."""
    head = result["headline"]
    names = [("precision", "precision"), ("miss", "miss rate"), ("relevant_per_query", "relevant per query")]
    figure, axes = _axes(1, 3, size=(9.2, 3.4))
    dropped = [row["dropped"] for row in result["leave_one_out"]]
    for axis, (name, label) in zip(axes[0], names, strict=True):
        values = [np.nan if row[name] is None else row[name] for row in result["leave_one_out"]]
        whole = head[name]
        if whole["low"] is not None:
            axis.axhspan(whole["low"], whole["high"], color=BLUE, alpha=0.1, linewidth=0)
        if whole["value"] is not None:
            axis.axhline(whole["value"], color=BLUE, linewidth=1)
        axis.plot(range(len(values)), values, "o", color=ORANGE, markersize=5)
        axis.set_xticks(range(len(dropped)), dropped, rotation=90, fontsize=7)
        axis.set_title(label, loc="left", fontsize=10)
    axes[0, 0].set_ylabel("without this annotator")
    _mark(axes[0, 2], result["simulated"], 1.1)
    return figure


def tier_figure(result: Mapping[str, Any]) -> Figure:
    """EV Table 6 as stacked bars: majority labels within each judge tier."""
    figure, axes = _axes(size=(6.4, 2.9))
    axis = axes[0, 0]
    axis.grid(visible=False)
    colours = {"full": BLUE, "partial": GREEN, "none": ORANGE, "no majority": "#c9cdd2"}
    tiers = list(TIERS)
    left = np.zeros(len(tiers))
    for label, colour in colours.items():
        shares = np.array([result["tiers"][tier]["shares"].get(label) or 0.0 for tier in tiers])
        axis.barh(tiers, shares, left=left, color=colour, label=label, height=0.6)
        for row, share in enumerate(shares):
            if share >= 0.06:
                axis.text(
                    left[row] + share / 2,
                    row,
                    f"{100 * share:.1f}",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=8,
                )
        left += shares
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), xlabel="share of the tier's candidates", ylabel="judge's tier")
    axis.legend(
        title="majority", frameon=False, fontsize=8, title_fontsize=8, bbox_to_anchor=(1.0, 0.5), loc="center left"
    )
    axis.set_title("Agreement by tier", loc="left", fontsize=10)
    _mark(axis, result["simulated"])
    return figure


def recovery_figure(recovery: pd.DataFrame, coverage: pd.DataFrame) -> Figure:
    """What was put into the *simulated* study, and the study's estimates and intervals; beneath, how often they hold."""
    figure, axes = _axes(1, len(recovery), size=(2.3 * len(recovery) + 0.6, 3.2))
    held = coverage.set_index("figure")["share"] if len(coverage) else {}
    for axis, row in zip(axes[0], recovery.itertuples(), strict=True):
        axis.errorbar(
            [0],
            [row.value],
            yerr=[[row.value - row.low], [row.high - row.value]],
            fmt="o",
            color=BLUE,
            capsize=4,
            label="study",
        )
        axis.plot([0], [row.given], marker="D", color=ORANGE, linestyle="none", label="put in")
        share = f"\n{100 * held[row.figure]:.0f}% of repeats hold it" if row.figure in held else ""
        axis.set_xticks([0], [f"{row.figure.replace('_', ' ')}{share}"], fontsize=8)
        axis.set_xlim(-0.6, 0.6)
    axes[0, 0].legend(frameon=False, fontsize=8)
    _mark(axes[0, -1], True)
    return figure


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Software": None})
    return path


def write_figures(result: Mapping[str, Any], out: Path, *, mark: str, recovery: Path | None = None) -> list[Path]:
    """Save the figures that the result has data for; returns the paths."""
    written = []
    if result["what"] == "evidence":
        return [_save(tier_figure(result), out / f"audit-tiers{mark}.png")]
    if any(row["kappa"] is not None and row["kappa"] == row["kappa"] for row in result["pairings"]):
        written.append(_save(kappa_figure(result), out / f"audit-kappa{mark}.png"))
    if result["curve"]:
        written.append(_save(threshold_figure(result), out / f"audit-threshold{mark}.png"))
    if result["leave_one_out"]:
        written.append(_save(leave_one_out_figure(result), out / f"audit-leave-one-out{mark}.png"))
    if recovery is not None and (recovery / "recovery.csv").is_file():
        tables = [measured_table(recovery / name) for name in ("recovery.csv", "coverage.csv")]
        written.append(_save(recovery_figure(*tables), out / f"audit-recovery{mark}.png"))
    return written
