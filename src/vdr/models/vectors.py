"""Ragged multi-vector sets on disk: the form in which encoded pages and queries travel to search and compression.

A data set's directory holds `pages.safetensors` and `queries.safetensors` (`vectors` [sum L, D] fp32 or fp16, `offsets`
int64 [n+1]; pages also `is_image` bool [sum L]), `ids.json` ({"pages": [...], "queries": [...]}, in the order of the
offsets) and, where the pages have a token grid, `grid.npy` int32 [n, 2] (rows, columns after merging).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from vdr.errors import BadInput, DamagedArtefact

__all__ = ["VectorSet", "read_vectors", "write_vectors"]


@dataclass(frozen=True)
class VectorSet:
    """`n` items of a varying number of vectors, back to back.

    ids: n names in storage order; vectors: [sum L, D] fp32 or fp16; offsets: int64 [n+1], item i being rows
    `offsets[i]:offsets[i+1]`; is_image: bool [sum L] or None (queries); grid: int32 [n, 2] (rows, columns) or None.
    """

    ids: list[str]
    vectors: np.ndarray
    offsets: np.ndarray
    is_image: np.ndarray | None = None
    grid: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    def item(self, i: int) -> np.ndarray:
        """The vectors of item i, [L, D]."""
        return self.vectors[self.offsets[i] : self.offsets[i + 1]]

    def check(self, where: str | Path) -> None:
        """Raise DamagedArtefact when the parts do not fit together, BadInput on duplicate ids or non-finite vectors."""
        offsets, vectors = self.offsets, self.vectors
        if vectors.ndim != 2 or vectors.dtype not in (np.float32, np.float16):
            what = f"vectors must be [sum L, D] in fp32 or fp16, found {vectors.shape} {vectors.dtype}"
            raise DamagedArtefact(what, where=where)
        if (
            offsets.shape != (len(self.ids) + 1,)
            or offsets[0] != 0
            or offsets[-1] != len(vectors)
            or (np.diff(offsets) < 0).any()
        ):
            raise DamagedArtefact(
                f"offsets do not fit {len(self.ids)} ids and {len(vectors)} vectors", where=where, todo="encode again"
            )
        if self.is_image is not None and self.is_image.shape != (len(vectors),):
            raise DamagedArtefact("is_image does not have one entry a vector", where=where, todo="encode again")
        if self.grid is not None and self.grid.shape != (len(self.ids), 2):
            raise DamagedArtefact("grid does not have one row a page", where=where, todo="encode again")
        twice = [name for name, count in Counter(self.ids).items() if count > 1]
        if twice:
            raise BadInput(
                f"{len(twice)} ids occur more than once, e.g. {twice[0]!r}", where=where, todo="make ids unique"
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            item = int(np.searchsorted(offsets, int(np.argmin(finite)), side="right")) - 1
            raise BadInput(f"vectors of {self.ids[item]!r} are not finite", where=where, todo="look at its checkpoint")


def write_vectors(directory: Path, pages: VectorSet, queries: VectorSet) -> None:
    """Write one data set's vectors (see the module's text); the same input gives the same bytes."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("pages", pages), ("queries", queries)):
        part.check(directory / f"{name}.safetensors")
        tensors = {"vectors": np.ascontiguousarray(part.vectors), "offsets": part.offsets.astype(np.int64)}
        if part.is_image is not None:
            tensors["is_image"] = part.is_image.astype(bool)
        save_file(tensors, directory / f"{name}.safetensors")
    text = json.dumps({"pages": pages.ids, "queries": queries.ids}, ensure_ascii=False)
    (directory / "ids.json").write_text(text + "\n", encoding="utf-8")
    if pages.grid is not None:
        np.save(directory / "grid.npy", pages.grid.astype(np.int32))


def read_vectors(directory: Path) -> tuple[VectorSet, VectorSet]:
    """Pages and queries of one data set. Raises DamagedArtefact or BadInput, naming the file."""
    directory = Path(directory)
    try:
        ids = json.loads((directory / "ids.json").read_text(encoding="utf-8"))
        page_ids, query_ids = [str(x) for x in ids["pages"]], [str(x) for x in ids["queries"]]
        pages, queries = load_file(directory / "pages.safetensors"), load_file(directory / "queries.safetensors")
        grid = np.load(directory / "grid.npy") if (directory / "grid.npy").exists() else None
        sets = (
            VectorSet(page_ids, pages["vectors"], pages["offsets"], pages.get("is_image"), grid),
            VectorSet(query_ids, queries["vectors"], queries["offsets"]),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        what = f"vectors cannot be read ({type(error).__name__}: {error})"
        raise DamagedArtefact(what, where=directory, todo="encode again") from error
    sets[0].check(directory / "pages.safetensors")
    sets[1].check(directory / "queries.safetensors")
    return sets
