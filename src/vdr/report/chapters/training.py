"""Chapter 05: loss curves, validation, changed weights, and what a step costs (WT Appendices A, E, J)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from vdr.errors import BadInput
from vdr.report.figures import style
from vdr.report.record import Record
from vdr.report.reference import wt_tables
from vdr.textfiles import measured_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["changed_table", "cost_table", "curves", "curves_figure", "validation_table"]


def _checkpoints(record: Record) -> list[tuple[str, int, dict[str, Any]]]:
    """(arm, seed, manifest) of every recorded student."""
    own = {item["key"]: run for run in record.runs for item in run.pedigree.get("checkpoint", [])}
    found = [(own[m["key"]].arm, own[m["key"]].seed, m) for m in record.stages("checkpoint") if m["key"] in own]
    if not found:
        raise BadInput("the record holds no checkpoints", todo="record the run again")
    order = list(dict.fromkeys(run.arm for run in record.runs))
    return sorted(found, key=lambda item: (item[0] != "baseline", order.index(item[0]), item[1]))


def curves(record: Record, name: str) -> pd.DataFrame:
    """`loss.csv` or `validation.csv` of every student in one table, with columns arm and seed."""
    parts = []
    for arm, seed, manifest in _checkpoints(record):
        path = record.root / manifest["place"] / name
        if not path.is_file():
            raise BadInput(f"the record has no {name} of {arm}, seed {seed}", todo="record the run again")
        parts.append(measured_table(path).assign(arm=arm, seed=seed))
    return pd.concat(parts, ignore_index=True)


def curves_figure(record: Record, smooth: int = 15) -> Figure:
    """Left: the contrastive term while training, mean over seeds, smoothed. Right: validation loss at every check."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    style()
    losses, checks = curves(record, "loss.csv"), curves(record, "validation.csv")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9))
    colours = dict(zip(dict.fromkeys(losses["arm"]), sns.color_palette("colorblind"), strict=False))
    for arm, group in losses.groupby("arm", sort=False):
        line = group.groupby("step")["infonce"].mean().rolling(smooth, min_periods=1).mean()
        left.plot(line.index, line, color=colours[arm], label=arm)
    left.set(xlabel="step", ylabel="InfoNCE while training", yscale="log")
    for arm, group in checks.groupby("arm", sort=False):
        by_step = group.groupby("step")["infonce"]
        right.plot(by_step.mean().index, by_step.mean(), "o-", markersize=3, color=colours[arm], label=arm)
        right.fill_between(by_step.min().index, by_step.min(), by_step.max(), color=colours[arm], alpha=0.12)
    right.set(xlabel="step", ylabel="InfoNCE on validation rows")
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def validation_table(record: Record) -> pd.DataFrame:
    """The last validation of every arm, mean over seeds: InfoNCE and nDCG@5 over the validation rows' pages (one
    label)."""
    checks = curves(record, "validation.csv")
    last = checks.sort_values("step").groupby(["arm", "seed"], sort=False).tail(1)
    table = last.groupby("arm", sort=False)[["step", "infonce", "ndcg5"]].mean().reset_index()
    order = {arm: i for i, (arm, _, _) in enumerate(_checkpoints(record))}
    return table.sort_values("arm", key=lambda s: s.map(order)).round(4).reset_index(drop=True)


def changed_table(record: Record) -> pd.DataFrame:
    """Share of weights that differ from their initialisation, by kind of module, smallest over an arm's seeds (WT
    App. A)."""
    rows = [{"arm": arm, **m["measures"]["changed"]["by_kind"]} for arm, _, m in _checkpoints(record)]
    return pd.DataFrame(rows).groupby("arm", sort=False).min().reset_index().round(4)


def cost_table(record: Record) -> pd.DataFrame:
    """Seconds per step and as a ratio to the baseline, here and in the paper; peak memory (GB) of a training
    process."""
    rows = []
    for arm, _, manifest in _checkpoints(record):
        timing = manifest["measures"].get("timing", {})
        step, peak = timing.get("seconds_per_step_median"), manifest.get("peak_memory_mb", 0.0) / 1024
        rows.append({"arm": arm, "steps": manifest["measures"]["steps"], "s/step": step, "peak GB": peak})
    table = pd.DataFrame(rows).groupby("arm", sort=False).agg({"steps": "max", "s/step": "mean", "peak GB": "max"})
    paper = wt_tables()["table12_costs_gpu_hours"]["seconds_per_step"]
    printed = {"baseline": paper["baseline"], "A": paper["A"], "D": paper["D"], "N": paper["N/S"], "S": paper["N/S"]}
    table["ratio"] = table["s/step"] / table.loc["baseline", "s/step"]
    table["paper's s/step"] = [printed.get(arm) for arm in table.index]
    table["paper's ratio"] = [
        None if arm not in printed else round(printed[arm] / printed["baseline"], 2) for arm in table.index
    ]
    return table.reset_index().round({"s/step": 3, "peak GB": 2, "ratio": 2})
