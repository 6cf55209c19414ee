"""How cost grows: exact search with the number of pages, width and centroids; Ward with the number of tokens.

Called by `run_kernels.sh --plots`; writes results/scaling.json and results/scaling.png. What was too large to measure is
extrapolated from the largest measured size in proportion, and marked as such in both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).resolve().parent / "results"
LQ = 20


def best(call: Callable[[], Any], repeats: int = 3) -> float:
    """Fastest of a few calls, ms."""
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return 1e3 * min(spent)


def search_ms(pages: int, k: int, d: int) -> float:
    """One 20-vector query against pages of k vectors of width d, fp16."""
    from vdr.kernels.maxsim import maxsim_search

    q = torch.nn.functional.normalize(torch.randn(LQ, d), dim=1)
    block = torch.nn.functional.normalize(torch.randn(min(pages * k, 1 << 18), d), dim=1).half()
    rows = block.repeat(-(-pages * k // len(block)), 1)[: pages * k]
    offsets = np.arange(pages + 1) * k
    return best(lambda: maxsim_search(q, [0, LQ], rows, offsets))


def grow(kind: str, sizes: list[int], largest: int, k: int, d: int) -> list[dict[str, Any]]:
    """Search time by number of pages; sizes above ``largest`` are extrapolated from it."""
    rows: list[dict[str, Any]] = []
    for pages in sizes:
        if pages <= largest:
            rows.append({"series": kind, "x": pages, "ms": search_ms(pages, k, d), "measured": True})
        else:
            rows.append({"series": kind, "x": pages, "ms": rows[-1]["ms"] * pages / rows[-1]["x"], "measured": False})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, write, draw."""
    from bench_kernels import hardware, ward_page

    from vdr.kernels.ward import ward_labels

    rows = grow("pages: HAC d64 K32", [10**3, 10**4, 10**5, 10**6], 10**5, 32, 64)
    rows += grow("pages: raw d64 N1024", [10**3, 5 * 10**3, 10**4, 10**5, 10**6], 5 * 10**3, 1024, 64)
    rows += [{"series": "K (1,000 pages, d64)", "x": k, "ms": search_ms(1000, k, 64), "measured": True} for k in (8, 16, 32, 64, 128)]
    rows += [{"series": "d (1,000 pages, K32)", "x": d, "ms": search_ms(1000, 32, d), "measured": True}
             for d in (16, 32, 64, 128, 256, 512)]
    for n in (64, 128, 256, 512, 768, 1024, 1536):
        page = ward_page(0, n)
        rows.append({"series": "Ward: N (d64 → K32)", "x": n, "ms": best(lambda page=page: ward_labels(page, 32)), "measured": True})
    for d in (16, 64, 128, 320):
        page = ward_page(0, 1024, d)
        rows.append({"series": "Ward: d (N1024 → K32)", "x": d, "ms": best(lambda page=page: ward_labels(page, 32)), "measured": True})
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"hardware": hardware(), "rows": rows}, indent=1, sort_keys=True)
    (RESULTS / "scaling.json").write_text(text + "\n")
    draw(rows, RESULTS / "scaling.png")


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """One panel a kind of growth, log-log; hollow marks are extrapolated."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {"pages": "pages", "K": "vectors a page", "d": "width", "Ward: N": "image tokens N", "Ward: d": "width (Ward)"}
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.6))
    for axis, (start, label) in zip(axes, panels.items(), strict=True):
        names = dict.fromkeys(r["series"] for r in rows if r["series"].startswith((f"{start}:", f"{start} ")))
        for name in names:
            own = [r for r in rows if r["series"] == name]
            line = axis.plot([r["x"] for r in own], [r["ms"] for r in own], linewidth=1)[0]
            for r in own:
                axis.scatter(r["x"], r["ms"], s=28, zorder=3, color=line.get_color() if r["measured"] else "white",
                             edgecolor=line.get_color())
            line.set_label(name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.set_ylabel("ms")
        axis.legend(fontsize=7)
    figure.suptitle("one 20-vector query, fp16; one page for Ward; hollow: extrapolated in proportion", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=130)
