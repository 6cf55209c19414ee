"""EV's Figures 1, 7 and 8 from a compression record: plain matplotlib objects, the same bytes for the same record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from vdr.compression.evidence import Case, draw_case
from vdr.compression.pooling import Pooling
from vdr.compression.record import EvRecord
from vdr.compression.reference import evie
from vdr.compression.report import _row, _suites, _variants, sweep
from vdr.compression.variants import Variant
from vdr.errors import BadInput, did_you_mean
from vdr.report.figures import PALETTE, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "make_figure", "sweep_figure"]


def _suite(suites: list[str]) -> str:
    return "v3" if "v3" in suites else suites[0]


def figure1(record: EvRecord) -> Figure:
    """Accuracy against payload: this run's forms at left, the paper's (Table 2) at right, payload on a log scale."""
    import matplotlib.pyplot as plt

    style()
    own = _variants(record)
    suite = _suite(_suites(own))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4))
    kinds = {"raw": ("o", PALETTE["run"]), "hac": ("s", PALETTE["paper"]), "ward": ("^", PALETTE["third"]), "grid": ("v", PALETTE["grey"]),
             "colpali": ("D", "#CC79A7")}
    seen = set()
    for name, row in own.iterrows():
        kind = str(name).split("-")[0]
        if "-w" in str(name):
            continue
        mark, colour = kinds[kind]
        axes[0].scatter(row["bytes"] * 1e6 / 2**30, row[suite], marker=mark, color=colour, s=34, label=None if kind in seen else kind)
        seen.add(kind)
        if kind == "raw" or str(name).startswith(f"hac-d{record.settings.d}"):
            axes[0].annotate(str(name), (row["bytes"] * 1e6 / 2**30, row[suite]), fontsize=6.5, xytext=(3, 3), textcoords="offset points")
    axes[0].set_title(f"this run ({suite})", loc="left")
    for name, (_, vectors, _, gib, score) in ((k, v) for k, v in evie()["table2_v3"].items() if k != "columns"):
        kind = "hac" if name.startswith("HAC") else "raw" if name.startswith("EVIE") else "single" if vectors == 1 else "other"
        mark, colour = {"hac": ("s", PALETTE["paper"]), "raw": ("o", PALETTE["run"]), "single": ("x", PALETTE["third"]),
                        "other": ("+", PALETTE["grey"])}[kind]
        axes[1].scatter(gib, score, marker=mark, color=colour, s=40)
        if kind in ("hac", "raw"):
            axes[1].annotate(name, (gib, score), fontsize=6.5, xytext=(3, 3), textcoords="offset points")
    axes[1].set_title("the paper (ViDoRe V3, its Table 2)", loc="left")
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlabel("GiB per million pages (16 bit)")
        axis.set_ylabel("nDCG@10")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure


def figure7(record: EvRecord) -> Figure:
    """(a) nDCG@10 by prefix width; (b) more vectors minus wider vectors at equal payload, suite by suite."""
    import matplotlib.pyplot as plt

    style()
    own, settings = _variants(record), record.settings
    suites = _suites(own)
    suite = _suite(suites)
    widths = [w for w in settings.widths if w <= record.encoder()["full"]]
    trained = record.encoder()["trained"]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    values = [float(_row(own, Variant(w))[suite]) for w in widths]
    axes[0].plot(widths, values, color=PALETTE["run"], zorder=1)
    for w, value in zip(widths, values, strict=True):
        axes[0].scatter(w, value, color=PALETTE["run"] if w in trained else "white", edgecolor=PALETTE["run"], zorder=3, s=46)
    paper = evie()["table9_widths_v3"]
    right = axes[0].twinx()
    right.grid(False)
    right.plot([int(w) for w in paper], list(paper.values()), color=PALETTE["paper"], marker="D", linestyle="--")
    right.set_ylabel("the paper's V3", color=PALETTE["paper"])
    axes[0].set_xscale("log", base=2)
    axes[0].set_xlabel("prefix width (filled: trained; hollow: cut post hoc)")
    axes[0].set_ylabel(f"nDCG@10 on {suite}", color=PALETTE["run"])
    axes[0].set_title("(a) width", loc="left")
    d, k = settings.d, settings.second_k
    wide = next((w for w in settings.payload_widths if w > d and d * k % w == 0 and w <= record.encoder()["full"]), None)
    if wide is None:
        raise BadInput(f"no width of {list(settings.payload_widths)} shares the payload of d={d}, K={k}", where="compression")
    many = _row(own, Variant(d, Pooling("hac", d, k, settings.w_pos)))
    few = _row(own, Variant(wide, Pooling("hac", wide, d * k // wide, settings.w_pos)))
    place = np.arange(len(suites))
    axes[1].bar(place - 0.18, [float(many[s] - few[s]) for s in suites], 0.36, color=PALETTE["run"],
                label=f"this run: (d={d}, K={k}) − (d={wide}, K={d * k // wide})")
    printed = evie()["equal_payload"]["7.63 GiB: (64,64) minus (128,32)"]
    names = {"v1": "v1", "v2": "v2", "v3": "v3", "jina": "jina_vdr"}
    axes[1].bar(place + 0.18, [printed.get(names.get(s, s), np.nan) for s in suites], 0.36, color=PALETTE["paper"],
                label="paper: (64, 64) − (128, 32)")
    axes[1].axhline(0, color="black", linewidth=0.8)
    axes[1].set_xticks(place, suites)
    axes[1].set_ylabel("difference in nDCG@10")
    axes[1].set_title("(b) equal payload", loc="left")
    axes[1].legend(fontsize=8)
    figure.tight_layout()
    return figure


def figure8(record: EvRecord) -> Figure:
    """A query that HAC keeps and one that it loses: page, MaxSim map, the top token's cluster."""
    import matplotlib.pyplot as plt

    style()
    content = record.cases()
    cases = content["cases"]
    if not cases:
        raise BadInput("no query is kept or lost by these settings: there is no case to show", where=record.root)
    figure, axes = plt.subplots(len(cases), 3, figsize=(12, 3.6 * len(cases)), squeeze=False)
    for row, case in zip(axes, cases, strict=True):
        draw_case(_case(case), case["image"], case["query"], row)
    paper = evie()["evidence_cases"]
    theirs = f"{paper['top3_in_both']} and {paper['raw_le3_hac_gt10']} of {paper['queries_with_relevant_page']}"
    figure.suptitle(f"{content['queries']} queries: {content['kept']} in the top three of both, {content['lost']} lost "
                    f"(paper: {theirs})", fontsize=10)
    figure.tight_layout()
    return figure


def _case(content: dict[str, Any]) -> Case:
    return Case(content["kind"], content["query_id"], content["page_id"], content["raw_rank"], content["hac_rank"], content["map"],
                content["labels"], tuple(content["token"]), tuple(content["box"]))


def sweep_figure(record: EvRecord) -> Figure:
    """nDCG@10 against w_pos, one line a suite (EV App. C)."""
    import matplotlib.pyplot as plt

    style()
    values = sweep(record)
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for name in values.columns[1:]:
        axis.plot(values["w_pos"], values[name], marker="o", markersize=4, label=name, linewidth=2.4 if name == "avg" else 1.2)
    axis.axvline(record.settings.w_pos, color=PALETTE["grey"], linestyle=":")
    axis.set_xlabel("w_pos")
    axis.set_ylabel("nDCG@10")
    axis.legend(fontsize=8, ncols=5)
    figure.tight_layout()
    return figure


FIGURES: dict[str, Callable[[EvRecord], Figure]] = {"ev-figure1": figure1, "ev-figure7": figure7, "ev-figure8": figure8}


def make_figure(record: EvRecord, name: str) -> Figure:
    """A figure by name; BadInput for an unknown one."""
    if name not in FIGURES:
        raise BadInput(f"unknown EV figure {name!r}", todo=did_you_mean(name, FIGURES))
    return FIGURES[name](record)
