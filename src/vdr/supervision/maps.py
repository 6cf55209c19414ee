"""Teacher attention maps over a page's image tokens, and their pooling to the student's grid (WT §3).

maps.npz: row_id int64 [R]; maps float32 [R, H*W] where all pages have one grid, else float32 [sum H*W] with offsets
int64 [R+1]; grid int32 [R, 2] (rows, columns). Row-major, as the grids of `vdr.models`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vdr.errors import BadInput, DamagedArtefact

__all__ = ["PatchMaps", "pool_map", "read_maps", "write_maps"]


@dataclass(frozen=True)
class PatchMaps:
    """R maps: row_ids int64 [R]; maps: R arrays fp32 [H, W], each on its own grid."""

    row_ids: np.ndarray
    maps: list[np.ndarray]

    def by_row(self) -> dict[int, np.ndarray]:
        return dict(zip(self.row_ids.tolist(), self.maps, strict=True))


def _overlap(source: int, target: int) -> np.ndarray:
    """[target, source]: which share of each source cell lies in each target cell, along one axis of equal length."""
    edges_s, edges_t = np.linspace(0, 1, source + 1), np.linspace(0, 1, target + 1)
    low = np.maximum(edges_t[:-1, None], edges_s[None, :-1])
    high = np.minimum(edges_t[1:, None], edges_s[None, 1:])
    return np.clip(high - low, 0, None) * source


def pool_map(values: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """A map [H, W] brought to [grid[0], grid[1]] by area: each cell hands on its mass in proportion to its overlap.

    The total is kept; a grid of the same size is returned unchanged. fp32 result. Raises BadInput for a map that is
    not 2-D, holds negative or non-finite values, or for an empty grid.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 1 or min(grid) < 1:
        raise BadInput(f"cannot pool a map of shape {values.shape} to the grid {tuple(grid)}", where="maps")
    if not np.isfinite(values).all() or (values < 0).any():
        raise BadInput("an attention map holds negative or non-finite values", where="maps", todo="extract it again")
    if values.shape == tuple(grid):
        return values.astype(np.float32)
    pooled = _overlap(values.shape[0], grid[0]) @ values @ _overlap(values.shape[1], grid[1]).T
    return pooled.astype(np.float32)


def write_maps(path: Path, maps: PatchMaps) -> None:
    """Write maps.npz; the same maps give the same bytes."""
    grid = np.array([m.shape for m in maps.maps], dtype=np.int32).reshape(-1, 2)
    flat = [np.ascontiguousarray(m, dtype=np.float32).reshape(-1) for m in maps.maps]
    parts: dict[str, Any] = {"row_id": maps.row_ids.astype(np.int64), "grid": grid}
    if len({m.size for m in flat}) <= 1:
        parts["maps"] = np.stack(flat) if flat else np.empty((0, 0), np.float32)
    else:
        parts["maps"] = np.concatenate(flat)
        parts["offsets"] = np.concatenate([[0], np.cumsum([m.size for m in flat])]).astype(np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, **parts)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_bytes(buffer.getvalue())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_maps(where: Path, grid: tuple[int, int] | None = None) -> PatchMaps:
    """Maps of an artefact directory (or of the file itself). grid: the shape of all maps where the file does not
    say it.

    Raises DamagedArtefact when the file cannot be read or its parts do not fit.
    """
    where = Path(where)
    path = where / "maps.npz" if where.is_dir() else where
    try:
        with np.load(path) as file:
            row_ids, maps = file["row_id"], file["maps"]
            offsets = file.get("offsets")
            grids = file.get("grid")
    except (OSError, ValueError, KeyError, EOFError) as error:
        what = f"maps cannot be read ({type(error).__name__}: {error})"
        raise DamagedArtefact(what, where=path, todo="extract them again") from error
    if grids is None:
        if grid is None:
            raise BadInput("says no grid", where=path, todo="give the grid of its maps")
        grids = np.tile(np.array(grid, dtype=np.int32), (len(row_ids), 1))
    grids = np.broadcast_to(grids, (len(row_ids), 2))
    if offsets is None:
        offsets = np.arange(len(row_ids) + 1) * (maps.shape[1] if maps.ndim == 2 else 0)
    flat = maps.reshape(-1)
    fits = (
        len(offsets) == len(row_ids) + 1 and (np.diff(offsets) == grids.prod(axis=1)).all() and offsets[-1] == len(flat)
    )
    if not fits:
        raise DamagedArtefact("grids and maps do not fit", where=path, todo="extract them again")
    shaped = [flat[offsets[i] : offsets[i + 1]].reshape(tuple(grids[i])) for i in range(len(row_ids))]
    return PatchMaps(row_ids, shaped)


def maps_for_rows(
    maps: PatchMaps, row_ids: list[int], page_ids: list[str], student_grid: Callable[[str], tuple[int, int]]
) -> PatchMaps:
    """The rows' maps in the rows' order, pooled to each page's student grid. Raises BadInput for a row without a
    map."""
    known = maps.by_row()
    missing = [row for row in row_ids if row not in known]
    if missing:
        raise BadInput(
            f"{len(missing)} rows have no attention map, e.g. row {missing[0]}", where="maps", todo="extract them"
        )
    pooled = [pool_map(known[row], student_grid(page)) for row, page in zip(row_ids, page_ids, strict=True)]
    return PatchMaps(np.array(row_ids, dtype=np.int64), pooled)
