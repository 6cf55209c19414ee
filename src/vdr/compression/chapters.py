"""What the chapters on HAC and serving show; notebooks call these and hold no logic of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vdr.compression.pooling import blend, position_features, unit
from vdr.compression.record import EvRecord, open_record
from vdr.compression.report import make_table
from vdr.errors import BadInput
from vdr.kernels.ward import ward_labels, ward_reference
from vdr.study.settings import repository_root

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["agreement", "clusters_figure", "kernel_table", "open_chapter", "position_figure", "scaling_image", "shown"]


def open_chapter(record: str | Path) -> EvRecord:
    """The compression record that belongs to a run's record: `<recorded run>/ev`, or `ev` beside `outputs/<profile>/record`."""
    place = Path(record)
    place = place if place.is_absolute() else repository_root() / place
    for candidate in (place / "ev", place.parent / "ev", place):
        if (candidate / "record.json").is_file() and candidate.name == "ev":
            return open_record(candidate)
    raise BadInput("there is no compression record beside this run's", where=place, todo="run `vdr hac reproduce all` first")


def shown(record: EvRecord, name: str) -> pd.DataFrame:
    """A table as a notebook shows it: two decimals, empty where nothing is known."""
    frame = make_table(record, name).frame.copy()
    numbers = frame.select_dtypes("number").columns
    frame[numbers] = frame[numbers].round(2)
    return frame.astype(object).where(frame.notna(), "")


def agreement(pages: int = 4, n: int = 300, d: int = 32, k: int = 16) -> str:
    """Ward partitions of drawn pages against SciPy's, as a sentence."""
    rng = np.random.default_rng(0)
    equal = 0
    for _ in range(pages):
        x = unit(rng.standard_normal((12, d))[rng.integers(0, 12, n)] + 0.4 * rng.standard_normal((n, d)))
        equal += bool(np.array_equal(ward_labels(x, k), ward_reference(x, k)))
    return f"{equal} of {pages} pages of {n} vectors: the same {k} clusters as SciPy's Ward"


def position_figure(grid: tuple[int, int] = (32, 24), d: int = 64) -> Figure:
    """Cosine of one token's position features with all others', and of its clustering features for one meaning everywhere."""
    import matplotlib.pyplot as plt

    from vdr.report.figures import style

    style()
    table = position_features(*grid, d)
    at = (grid[0] // 3) * grid[1] + grid[1] // 3
    same = unit(np.tile(np.random.default_rng(0).standard_normal(d), (len(table), 1)))
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6))
    for axis, features, title in ((axes[0], table, "position alone"), (axes[1], blend(same, grid, 0.1), "w_pos = 0.1, one meaning"),
                                  (axes[2], blend(same, grid, 0.5), "w_pos = 0.5, one meaning")):
        image = axis.imshow((features @ features[at]).reshape(grid), cmap="viridis")
        axis.set_title(title, fontsize=10)
        axis.set_axis_off()
        figure.colorbar(image, ax=axis, fraction=0.05)
    return figure


def clusters_figure(record: EvRecord) -> Figure:
    """The pages of the recorded cases with their HAC clusters."""
    import matplotlib.pyplot as plt

    from vdr.report.figures import style

    style()
    cases = record.cases()["cases"]
    if not cases:
        raise BadInput("the record shows no case", where=record.root)
    figure, axes = plt.subplots(1, 2 * len(cases), figsize=(5.4 * len(cases), 3.4), squeeze=False)
    for place, case in enumerate(cases):
        page, clusters = axes[0][2 * place], axes[0][2 * place + 1]
        page.imshow(case["image"])
        page.set_title(f"page ({case['kind']})", fontsize=10)
        clusters.imshow(case["labels"], cmap="tab20", interpolation="nearest", aspect="auto")
        clusters.set_title(f"{case['labels'].max() + 1} clusters of {case['labels'].size} tokens", fontsize=10)
        for axis in (page, clusters):
            axis.set_axis_off()
    return figure


def _results(name: str) -> Path:
    path = repository_root() / "benchmarks" / "results" / name
    if not path.is_file():
        raise BadInput("was not measured yet", where=path, todo="run `make bench-kernels`")
    return path


def kernel_table() -> pd.DataFrame:
    """The benchmark's rows: work, peer, times, ratio, goal, and how far from this machine's limit."""
    rows: list[dict[str, Any]] = []
    for row in json.loads(_results("kernels.json").read_text(encoding="utf-8")):
        limit = row["limit_ms"]
        level = {"level": row["hardware"]["instructions"]} if "instructions" in row["hardware"] else {}
        rows.append({**level, "work": row["work"], "peer": row["peer"], "ours (ms)": round(row["ours_ms"], 2),
                     "peer (ms)": round(row["peer_ms"], 2), "ratio": round(row["ratio"], 2), "goal": row["goal_ratio"] or "",
                     "ours / limit": round(row["ours_ms"] / limit, 2) if limit else "", "parity": row["parity"]})
    return pd.DataFrame(rows)


def scaling_image() -> Any:
    """The recorded scaling plot."""
    from PIL import Image

    return Image.open(_results("scaling.png"))
