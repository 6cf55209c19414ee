"""Evidence cases (EV §6.5, Figure 8): a query that HAC keeps and one that it loses, with the page, where MaxSim looks, and
the cluster of the best-matching token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vdr.compression.pooling import Pooling, compress, image_only
from vdr.compression.prefix import Widths, narrow
from vdr.compression.variants import ranks_of_relevant
from vdr.errors import BadInput
from vdr.evaluation.search import search
from vdr.models.vectors import VectorSet

__all__ = ["Case", "Cases", "box_of", "find_cases", "maxsim_map"]


@dataclass(frozen=True)
class Case:
    """One query on its best relevant page. ``map`` fp32 [H, W]: each image token's share of the raw MaxSim score; ``labels``
    int32 [H, W]: HAC clusters; ``token``: (row, column) of the token with the largest share; ``box``: (top, left, bottom,
    right) of its cluster on the grid, ends excluded."""

    kind: str
    query_id: str
    page_id: str
    raw_rank: int
    hac_rank: int
    map: np.ndarray
    labels: np.ndarray
    token: tuple[int, int]
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Cases:
    """Counts over a data set's queries, and one case of each kind where there is one."""

    queries: int
    kept: int
    lost: int
    cases: list[Case]


def maxsim_map(query: np.ndarray, tokens: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Where a page earns its score: [H, W], the sum over query vectors of the maximal product, at its winning token.

    query [Lq, d], tokens [H·W, d] in raster order. Only image tokens can win here: raw search also matches context tokens,
    which have no place on the page. The map's sum is the page's image-only MaxSim score.
    """
    if len(tokens) != grid[0] * grid[1]:
        raise BadInput(f"{len(tokens)} tokens on a grid of {grid[0]}×{grid[1]}")
    products = np.asarray(query, np.float32) @ np.asarray(tokens, np.float32).T
    mass = np.zeros(len(tokens), dtype=np.float32)
    np.add.at(mass, products.argmax(1), products.max(1))
    return mass.reshape(grid)


def box_of(labels: np.ndarray, token: tuple[int, int]) -> tuple[int, int, int, int]:
    """Bounding box (top, left, bottom, right; ends excluded) of the cluster that holds ``token`` on the grid of labels."""
    rows, columns = np.nonzero(labels == labels[token])
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1


def find_cases(pages: VectorSet, queries: VectorSet, qrels: Mapping[str, Mapping[str, int]], pooling: Pooling, widths: Widths,
               *, lost_rank: int = 10) -> Cases:
    """Count kept and lost queries of one data set, and take the clearest of each.

    Kept: a relevant page is in the top three of raw and of HAC search. Lost: raw has one in the top three, HAC beyond
    ``lost_rank``. The case shown is the first in query id order with the best raw rank (kept) or the worst HAC rank (lost).
    """
    narrowed, asked = (narrow(part, pooling.d, widths, post_hoc=True) for part in (pages, queries))
    pooled, labels = compress(narrowed, pooling)
    images = image_only(narrowed)
    raw, hac = (search(asked, part, depth=len(pages)).run.rankings for part in (narrowed, pooled))
    kept, lost = [], []
    for name in sorted(qrels):
        before, after = ranks_of_relevant(raw[name], qrels[name]), ranks_of_relevant(hac[name], qrels[name])
        if before <= 3 and after <= 3:
            kept.append((before, after, name))
        elif before <= 3 and after > lost_rank:
            lost.append((before, after, name))
    chosen = [("kept", min(kept, key=lambda c: (c[0], c[1])))] if kept else []
    chosen += [("lost", max(lost, key=lambda c: c[1]))] if lost else []
    cases = [_case(kind, found, raw, qrels, pages, asked, images, labels) for kind, found in chosen]
    return Cases(len(qrels), len(kept), len(lost), cases)


def _case(kind: str, found: tuple[float, float, str], raw: Mapping[str, Sequence[tuple[str, float]]],
          qrels: Mapping[str, Mapping[str, int]], pages: VectorSet, queries: VectorSet, images: VectorSet,
          labels: Sequence[np.ndarray]) -> Case:
    before, after, name = found
    page = raw[name][int(before) - 1][0]
    i = pages.ids.index(page)
    assert pages.grid is not None
    grid = (int(pages.grid[i][0]), int(pages.grid[i][1]))
    heat = maxsim_map(queries.item(queries.ids.index(name)), images.item(i), grid)
    top = divmod(int(heat.argmax()), grid[1])
    own = labels[i].reshape(grid)
    return Case(kind, name, page, int(before), int(after), heat, own, top, box_of(own, top))


def draw_case(case: Case, image: Any, query: str, axes: Sequence[Any]) -> None:
    """Page, MaxSim map with the cluster's box, and the box's crop, into three axes; ``image`` an RGB image."""
    from matplotlib.patches import Rectangle

    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    rows, columns = case.map.shape
    top, left, bottom, right = (round(value) for value in (
        case.box[0] * height / rows, case.box[1] * width / columns, case.box[2] * height / rows, case.box[3] * width / columns))
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.grid(False)
    axes[0].imshow(pixels)
    axes[0].set_title(f"{case.kind}: raw {case.raw_rank}, HAC {case.hac_rank}", loc="left")
    axes[0].set_xlabel(query if len(query) < 60 else query[:57] + "…", fontsize=8)
    axes[1].imshow(pixels, alpha=0.55)
    upper = np.where(case.map >= np.quantile(case.map[case.map > 0], 0.5), case.map, np.nan)
    axes[1].imshow(upper, cmap="YlOrRd", alpha=0.65, extent=(0, width, height, 0), vmin=0)
    axes[1].add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="#0072B2", linewidth=2))
    axes[1].set_title("MaxSim map, box of the top token's cluster", loc="left")
    axes[2].imshow(pixels[top:bottom, left:right])
    axes[2].set_title("that cluster's box", loc="left")
