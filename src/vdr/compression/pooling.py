"""HAC and its comparators: image tokens of a page → at most K centroids (EV §5.1, Algorithm 2; comparators EV §6.3).

Every method shares the ends of Algorithm 2 and differs in the middle only: prefixes of the image tokens are normalised,
*the method assigns tokens to clusters*, and each cluster's normalised fp32 mean of the original prefix vectors is stored
in fp16. Methods:

* ``hac``: Euclidean Ward on semantic vectors blended with sinusoidal features of the token's place on the merged grid;
* ``ward``: the same with w_pos = 0 (semantic only);
* ``grid``: cells of the grid, no semantics;
* ``colpali``: the assignment of colpali-engine's ``HierarchicalTokenPooler``, Ward on the *rows of the 1 − cosine matrix*.

HAC's centroids are therefore *not* those of colpali-engine, PyLate or sentence-transformers; see :mod:`vdr.kernels.ward`.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch

from vdr.errors import BadInput
from vdr.kernels import native
from vdr.kernels.native import pointer
from vdr.kernels.ward import check_features, ward_batch, ward_labels
from vdr.models.vectors import VectorSet

__all__ = ["Method", "Pooled", "Pooling", "blend", "compress", "image_only", "pool_page", "position_features", "unit"]

Method = Literal["hac", "ward", "grid", "colpali"]
Grid = tuple[int, int]


@dataclass(frozen=True)
class Pooling:
    """One configuration: method, prefix width d, centroid budget K, and the weight of position (EV: 0.1; ``hac`` only)."""

    method: Method = "hac"
    d: int = 64
    k: int = 32
    w_pos: float = 0.1

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise BadInput(f"unknown pooling method {self.method!r}", todo=f"choose one of {', '.join(get_args(Method))}")
        if self.d < 1 or self.k < 1:
            raise BadInput(f"pooling needs d ≥ 1 and k ≥ 1, got d={self.d}, k={self.k}")
        if not 0.0 <= self.w_pos <= 1.0:
            raise BadInput(f"w_pos must lie in [0, 1], got {self.w_pos}")
        if self.method == "hac" and self.w_pos > 0 and self.d % 4:
            raise BadInput(f"position features need a width divisible by 4, got {self.d}", todo="choose another width, "
                           "or the method ward, which has none")

    @property
    def name(self) -> str:
        weight = f"-w{self.w_pos:g}" if self.method == "hac" and self.w_pos != 0.1 else ""
        return f"{self.method}-d{self.d}-k{self.k}{weight}"


@dataclass(frozen=True)
class Pooled:
    """A pooled page: centroids fp16 [K', d] and, per image token in raster order, its cluster (int32 [N])."""

    centroids: np.ndarray
    labels: np.ndarray


def unit(rows: np.ndarray) -> np.ndarray:
    """fp32 rows divided by their norm (formed in fp64); zero rows stay zero."""
    rows = np.asarray(rows, dtype=np.float32)
    norm = np.sqrt(np.square(rows, dtype=np.float64).sum(-1, keepdims=True))
    return (rows / np.where(norm == 0, 1.0, norm)).astype(np.float32)


@functools.lru_cache(maxsize=256)
def position_features(height: int, width: int, d: int) -> np.ndarray:
    """p_i of EV eq. 8 for a merged grid in raster order, fp32 [height·width, d], unit rows; d divisible by 4.

    Coordinates run over [0, 1] (a single row or column sits at 0), m = d/4 frequencies from 1 to 10,000; for d = 4 the
    only frequency is 1, where the formula's exponent 0/0 is taken as 0.
    """
    if height < 1 or width < 1 or d < 4 or d % 4:
        raise BadInput(f"position features need a grid of at least 1×1 and d divisible by 4, got {height}×{width}, {d}")
    m = d // 4
    gamma = 10000.0 ** (np.arange(m) / max(m - 1, 1))
    y, x = np.divmod(np.arange(height * width), width)
    x, y = x / max(width - 1, 1), y / max(height - 1, 1)
    blocks = [f(gamma * c[:, None]) for c in (x, y) for f in (np.sin, np.cos)]
    table = np.concatenate(blocks, axis=1)
    table = (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)
    table.setflags(write=False)
    return table


def blend(vectors: np.ndarray, grid: Grid, w_pos: float) -> np.ndarray:
    """Clustering features z_i of EV eq. 9 from unit rows ``vectors`` [N, d], N = H·W: fp32 [N, d]."""
    if w_pos == 0:
        return vectors
    position = position_features(*grid, vectors.shape[1])
    return unit(np.float32(1 - w_pos) * vectors + np.float32(w_pos) * position)


def _assign_hac(vectors: np.ndarray, grid: Grid, k: int, w_pos: float) -> np.ndarray:
    return ward_labels(blend(vectors, grid, w_pos), k)


def _assign_ward(vectors: np.ndarray, grid: Grid, k: int, w_pos: float) -> np.ndarray:
    return ward_labels(vectors, k)


def _assign_colpali(vectors: np.ndarray, grid: Grid, k: int, w_pos: float) -> np.ndarray:
    return ward_labels(1.0 - vectors @ vectors.T, k)


def _assign_grid(vectors: np.ndarray, grid: Grid, k: int, w_pos: float) -> np.ndarray:
    rows, columns = grid_cells(grid, k)
    y, x = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    return ((y * rows // grid[0]) * columns + x * columns // grid[1]).astype(np.int32)


_ASSIGN: dict[str, Callable[[np.ndarray, Grid, int, float], np.ndarray]] = {
    "hac": _assign_hac, "ward": _assign_ward, "colpali": _assign_colpali, "grid": _assign_grid,
}


def grid_cells(grid: Grid, k: int) -> Grid:
    """Rows and columns of the cells of grid pooling: at most k cells, as many as possible, as square as possible.

    EV does not say how its 32 cells are cut; this is this package's choice. Ties go to more rows (pages are upright).
    """
    height, width = grid
    choices = [(r, min(width, k // r)) for r in range(1, min(height, k) + 1)]
    return max(choices, key=lambda c: (c[0] * c[1], -abs(math.log((height / c[0]) / (width / c[1]))), c[0]))


def pool_page(vectors: np.ndarray, grid: Grid, pooling: Pooling) -> Pooled:
    """Pool one page: image-token rows [N, D ≥ d] in raster order on the merged grid (H, W) → min(K, N) centroids.

    ``grid`` pooling may give fewer. With N ≤ K every token is its own cluster. Raises BadInput when N ≠ H·W, D < d, or a
    vector is not finite.
    """
    rows = np.asarray(vectors)
    if rows.ndim != 2 or rows.shape[1] < pooling.d:
        raise BadInput(f"pooling to width {pooling.d} needs vectors [N, D ≥ {pooling.d}], got {rows.shape}")
    n = len(rows)
    if n != grid[0] * grid[1]:
        raise BadInput(f"{n} image tokens on a grid of {grid[0]}×{grid[1]}", todo="give the grid after merging")
    v = unit(check_features(rows[:, : pooling.d], pooling.k))
    labels = np.arange(n, dtype=np.int32)
    if n > pooling.k:
        labels = _ASSIGN[pooling.method](v, (int(grid[0]), int(grid[1])), pooling.k, pooling.w_pos)
    return Pooled(centroids(v, labels).astype(np.float16), labels)


def centroids(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Normalised means of the rows of each label (EV eq. 10), fp32 [K', d]; rows are added in order; a zero mean stays zero."""
    v = np.ascontiguousarray(vectors, dtype=np.float32)
    count, d = int(labels.max()) + 1, v.shape[1]
    out = np.zeros((count, d), dtype=np.float32)
    library = native.library()
    if library is not None:
        long = ctypes.c_int64
        library.vdr_centroids(pointer(v), pointer(labels), long(len(v)), long(d), long(count), pointer(out))
        return out
    np.add.at(out, labels, v)
    return unit(out / np.bincount(labels, minlength=count).astype(np.float32)[:, None])


def image_only(pages: VectorSet) -> VectorSet:
    """The pages without their context tokens: what HAC pools, and the step that EV Table 8 measures apart.

    Raises BadInput when the set does not say which of its vectors are image tokens.
    """
    if pages.is_image is None:
        raise BadInput("the vectors do not say which are image tokens", todo="encode the pages again")
    kept = pages.is_image.astype(bool)
    offsets = np.concatenate([[0], np.cumsum(kept)])[pages.offsets]
    return replace(pages, vectors=pages.vectors[kept], offsets=offsets, is_image=np.ones(len(pages.vectors[kept]), bool))


def compress(pages: VectorSet, pooling: Pooling, *, workers: int | None = None, device: str = "cpu"
             ) -> tuple[VectorSet, list[np.ndarray]]:
    """Pool every page, spread over threads: the set of centroids (fp16) and each page's labels.

    Context tokens are left out. ``device`` other than "cpu" clusters there (methods hac and ward), many pages of one size at
    a time, with costs in fp32: near-ties may be decided otherwise than on the CPU. Raises BadInput naming the page.
    """
    if pages.grid is None:
        raise BadInput("the pages come without their grid", todo="encode the pages again")
    images = image_only(pages)
    grids = [(int(h), int(w)) for h, w in pages.grid]
    given: list[np.ndarray] | None = None
    if device != "cpu" and pooling.method in ("hac", "ward"):
        given = labels_on_device(images, grids, pooling, device)

    def one(i: int) -> Pooled:
        try:
            if given is None:
                return pool_page(images.item(i), grids[i], pooling)
            v = unit(images.item(i)[:, : pooling.d])
            return Pooled(centroids(v, given[i]).astype(np.float16), given[i])
        except BadInput as error:
            raise BadInput(error.what, where=f"page {pages.ids[i]!r}", todo=error.todo) from error

    pooled = native.run(one, range(len(pages)), workers=workers)
    if not pooled:
        return VectorSet([], np.zeros((0, pooling.d), np.float16), np.zeros(1, np.int64)), []
    offsets = np.concatenate([[0], np.cumsum([len(p.centroids) for p in pooled])]).astype(np.int64)
    vectors = np.concatenate([p.centroids for p in pooled])
    return VectorSet(list(pages.ids), vectors, offsets, np.ones(len(vectors), bool)), [p.labels for p in pooled]


def labels_on_device(images: VectorSet, grids: list[Grid], pooling: Pooling, device: str, budget: int = 2 << 30) -> list[np.ndarray]:
    """Ward labels of every page by :func:`vdr.kernels.ward.ward_batch`, pages of one size together, ``budget`` bytes at a time."""
    labels: list[np.ndarray] = [np.zeros(0, np.int32)] * len(images)
    sizes: dict[int, list[int]] = {}
    for i, (height, width) in enumerate(grids):
        rows = len(images.item(i))
        if rows != height * width or images.width < pooling.d:
            raise BadInput(f"{rows} image tokens of width {images.width} on a grid of {height}×{width}, to be cut to {pooling.d}",
                           where=f"page {images.ids[i]!r}", todo="give the grid after merging")
        sizes.setdefault(rows, []).append(i)
    weight = pooling.w_pos if pooling.method == "hac" else 0.0
    for rows, members in sizes.items():
        step = max(1, budget // (16 * rows * rows))  # the cost matrix and its temporaries
        for start in range(0, len(members), step):
            part = members[start : start + step]
            features = np.stack([blend(unit(images.item(i)[:, : pooling.d]), grids[i], weight) for i in part])
            found = ward_batch(torch.from_numpy(features).to(device), pooling.k).cpu().numpy().astype(np.int32)
            for i, own in zip(part, found, strict=True):
                labels[i] = own
    return labels
