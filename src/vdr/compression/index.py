"""A page index on disk: ids, offsets, 16-bit vectors and a manifest; memory-mapped, exact MaxSim search (EV §5.2, §6.5).

Directory: ``manifest.json`` (format, counts, width, storage type, what made it, SHA-256 and size of every file),
``vectors.bin`` (rows back to back, little-endian), ``offsets.npy`` (int64 [pages + 1]), ``ids.json``. It is written beside its
final name and renamed when complete. Opening checks sizes against the manifest, ``verify=True`` also the hashes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vdr.errors import BadInput, DamagedArtefact
from vdr.evaluation.search import rank_scores
from vdr.kernels.maxsim import maxsim_search
from vdr.models.vectors import VectorSet
from vdr.store import sha256_file

__all__ = ["Hit", "PageIndex", "Storage", "build_index", "cascade", "open_index"]

Storage = Literal["float16", "bfloat16", "float32"]
FORMAT = 1
FILES = ("vectors.bin", "offsets.npy", "ids.json")
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Hit:
    """One result of a search: page id and fp32 MaxSim score."""

    page_id: str
    score: float


@dataclass(frozen=True)
class PageIndex:
    """An open index. ``vectors`` [sum L, d] is a memory-mapped tensor in its storage type; ``offsets`` int64 [n + 1]."""

    path: Path
    manifest: Mapping[str, Any]
    ids: list[str]
    offsets: np.ndarray
    vectors: torch.Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "_columns", np.array(sorted(range(len(self.ids)), key=self.ids.__getitem__)))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def payload(self) -> int:
        """Bytes of the vectors alone (EV eq. 11)."""
        return self.vectors.numel() * self.vectors.element_size()

    @property
    def memory(self) -> int:
        """Bytes that a search touches: vectors and offsets."""
        return self.payload + self.offsets.nbytes

    def scores(self, query_vectors: np.ndarray, query_offsets: Sequence[int] | np.ndarray) -> np.ndarray:
        """Exact MaxSim, fp32 [queries, pages]; queries in fp32 or fp16, width d."""
        q = torch.from_numpy(np.ascontiguousarray(query_vectors, dtype=np.float32))
        if q.ndim != 2 or q.shape[1] != self.width:
            raise BadInput(f"queries must be [n, {self.width}], got {tuple(q.shape)}", where=self.path,
                           todo="encode queries at the index's width")
        return maxsim_search(q, np.asarray(query_offsets), self.vectors, self.offsets).numpy()

    def search(self, queries: VectorSet, depth: int = 10) -> dict[str, list[Hit]]:
        """The ``depth`` best pages of every query by the package's tie rule (score, then page id)."""
        return self.ranked(self.scores(queries.vectors, queries.offsets), queries.ids, depth)

    def ranked(self, scores: np.ndarray, query_ids: Sequence[str], depth: int) -> dict[str, list[Hit]]:
        """Hits from a score matrix [queries, pages] in the index's order of pages."""
        columns: np.ndarray = self._columns  # type: ignore[attr-defined]
        found = {}
        for name, row in zip(query_ids, scores, strict=True):
            row = row[columns]
            order, _ = rank_scores(row, depth)
            found[name] = [Hit(self.ids[columns[j]], float(row[j])) for j in order]
        return found


def build_index(pages: VectorSet, out: Path, *, storage: Storage = "float16", made_from: Mapping[str, Any] | None = None
                ) -> PageIndex:
    """Write an index and open it. ``made_from`` (encoder, pooling, …) goes into the manifest.

    Raises BadInput when ``out`` exists, the set is empty or faulty, or a value does not fit into fp16.
    """
    out = Path(out)
    if out.exists():
        raise BadInput("is there already", where=out, todo="name a directory that does not exist")
    if storage not in _BYTES:
        raise BadInput(f"unknown storage {storage!r}", todo=f"choose one of {', '.join(_BYTES)}")
    if not len(pages):
        raise BadInput("there are no pages to index", where=out)
    pages.check(out)
    vectors = torch.from_numpy(np.ascontiguousarray(pages.vectors)).to(getattr(torch, storage))
    if not torch.isfinite(vectors).all():
        raise BadInput(f"a vector does not fit into {storage}", where=out, todo="normalise the vectors first")
    work = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        raw = vectors.view(torch.int16).numpy() if storage != "float32" else vectors.numpy()
        if sys.byteorder == "big":
            raw = raw.byteswap()
        raw.tofile(work / "vectors.bin")
        np.save(work / "offsets.npy", pages.offsets.astype(np.int64))
        (work / "ids.json").write_text(json.dumps(pages.ids, ensure_ascii=False) + "\n", encoding="utf-8")
        manifest = {
            "format": FORMAT, "pages": len(pages), "vectors": len(pages.vectors), "width": pages.width, "storage": storage,
            "payload_bytes": vectors.numel() * _BYTES[storage], "made_from": dict(made_from or {}),
            "files": {name: {"sha256": sha256_file(work / name), "bytes": (work / name).stat().st_size} for name in FILES},
        }
        text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False)
        (work / "manifest.json").write_text(text + "\n", encoding="utf-8")
        os.rename(work, out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return open_index(out)


def open_index(path: Path, *, verify: bool = False) -> PageIndex:
    """Open an index. Raises BadInput when there is none, DamagedArtefact when files and manifest do not fit."""
    path = Path(path)
    place = path / "manifest.json"
    if not place.is_file():
        raise BadInput("there is no index", where=path, todo="build it with `vdr hac index`")
    try:
        manifest = json.loads(place.read_text(encoding="utf-8"))
        count, total, width = (int(manifest[name]) for name in ("pages", "vectors", "width"))
        storage, files, version = manifest["storage"], manifest["files"], manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedArtefact(f"manifest cannot be read ({type(error).__name__}: {error})", where=place, todo="build again") from error
    if version != FORMAT or storage not in _BYTES:
        raise DamagedArtefact(f"format {version!r} with storage {storage!r} is not known here", where=place,
                              todo="build it again with this version")
    for name in FILES:
        file = path / name
        size = file.stat().st_size if file.is_file() else None
        wanted = files.get(name, {}).get("bytes")
        if size != wanted:
            raise DamagedArtefact(f"is {'missing' if size is None else f'{size} bytes long'}, the manifest says {wanted}",
                                  where=file, todo="build the index again")
        if verify and sha256_file(file) != files[name]["sha256"]:
            raise DamagedArtefact("does not have the manifest's SHA-256", where=file, todo="build the index again")
    try:
        offsets = np.load(path / "offsets.npy", allow_pickle=False)
        ids = [str(name) for name in json.loads((path / "ids.json").read_text(encoding="utf-8"))]
    except ValueError as error:
        raise DamagedArtefact(f"ids or offsets cannot be read ({error})", where=path, todo="build the index again") from error
    if (len(ids) != count or offsets.shape != (count + 1,) or offsets[0] != 0 or offsets[-1] != total
            or (np.diff(offsets) < 0).any() or total * width * _BYTES[storage] != (path / "vectors.bin").stat().st_size):
        raise DamagedArtefact(f"ids, offsets and vectors do not fit {count} pages of width {width}", where=path,
                              todo="build the index again")
    return PageIndex(path, manifest, ids, offsets.astype(np.int64), _mapped(path / "vectors.bin", total, width, storage))


def _mapped(path: Path, total: int, width: int, storage: str) -> torch.Tensor:
    dtype = getattr(torch, storage)
    if not total:
        return torch.empty((0, width), dtype=dtype)
    if sys.byteorder == "big":
        return torch.from_numpy(np.fromfile(path, "<i2" if storage != "float32" else "<f4").astype(
            np.int16 if storage != "float32" else np.float32)).view(dtype).view(total, width)
    return torch.from_file(str(path), shared=False, size=total * width, dtype=dtype).view(total, width)


def cascade(coarse: PageIndex, fine: PageIndex, queries_coarse: VectorSet, queries_fine: VectorSet, *, first: int = 100,
            depth: int = 10) -> dict[str, list[Hit]]:
    """HAC search to ``first`` pages, then exact MaxSim on the raw vectors of those (EV §6.5, Table 12).

    Both indexes hold the same pages; scores are those of ``fine``. Raises BadInput when they do not fit together.
    """
    if coarse.ids != fine.ids or queries_coarse.ids != queries_fine.ids:
        raise BadInput("the two indexes of a cascade must hold the same pages in the same order", where=fine.path)
    if first < depth:
        raise BadInput(f"the first stage keeps {first} pages, fewer than the {depth} asked for")
    scores = coarse.scores(queries_coarse.vectors, queries_coarse.offsets)
    columns: np.ndarray = fine._columns  # type: ignore[attr-defined]
    found = {}
    for i, name in enumerate(queries_coarse.ids):
        order, _ = rank_scores(scores[i][columns], first)
        pages = np.sort(order)  # numbers in ascending page id: the tie rule of the second stage
        query = torch.from_numpy(queries_fine.item(i).astype(np.float32))
        row = maxsim_search(query, [0, len(query)], fine.vectors, fine.offsets, pages=columns[pages])[0].numpy()
        best, _ = rank_scores(row, depth)
        found[name] = [Hit(fine.ids[columns[pages[j]]], float(row[j])) for j in best]
    return found
