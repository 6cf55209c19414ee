"""Two-stage mining (WT §3, App. J): single-vector cosine search to a depth, MaxSim over what it found, a frozen
pool per row.

One tie rule in both stages: score descending, then page id ascending (as strings). Every row is mined by itself,
rows that repeat a query string included, so that a row's pool depends on its query alone. Work is cut into shards
of rows; a shard that is already on disk is not mined again, and the cut does not depend on how often the work was
interrupted or on how many processes share it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from vdr.errors import BadInput, DamagedArtefact
from vdr.kernels.maxsim import maxsim, maxsim_search
from vdr.mining.files import POOLS, claim_parts, read_table, write_table
from vdr.progress import track
from vdr.study.sections.mining import MiningSettings

__all__ = ["MultiVectors", "mean_vectors", "merge_pools", "mine_pools"]

PARTS = "partial"


class MultiVectors(Protocol):
    """`n` items of a varying number of vectors: ids [n], vectors [sum L, D], offsets int64 [n+1]."""

    @property
    def ids(self) -> list[str]: ...
    @property
    def vectors(self) -> np.ndarray: ...
    @property
    def offsets(self) -> np.ndarray: ...


def mean_vectors(items: MultiVectors) -> np.ndarray:
    """One vector an item, fp32 [n, D]: the mean of its vectors, scaled to length 1 (a zero mean stays zero).

    Stands in for a miner's own single-vector output where it has none. Raises BadInput for an item without vectors.
    """
    offsets = np.asarray(items.offsets)
    lengths = np.diff(offsets)
    if (lengths == 0).any():
        raise BadInput(
            f"{items.ids[int(np.argmin(lengths))]!r} has no vectors", where="miner vectors", todo="encode it again"
        )
    sums = np.add.reduceat(np.asarray(items.vectors, dtype=np.float32), offsets[:-1], axis=0)
    return _unit(sums / lengths[:, None])


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


class _Search:
    """Pages in id order on a device, so that a stable sort by score *is* the tie rule."""

    def __init__(self, pages: MultiVectors, page_single: np.ndarray | None, settings: MiningSettings) -> None:
        count = len(pages.ids)
        if count == 0:
            raise BadInput("no pages to search", where="miner vectors", todo="give at least one page")
        if len(set(pages.ids)) != count:
            raise BadInput("page ids occur more than once", where="miner vectors", todo="make them unique")
        self.settings = settings
        self.order = np.argsort(np.array(pages.ids, dtype=object), kind="stable")
        self.ids = [pages.ids[i] for i in self.order]
        self.position = {page_id: i for i, page_id in enumerate(self.ids)}
        self.depth = min(settings.depth, count)
        offsets, vectors = np.asarray(pages.offsets), np.asarray(pages.vectors)
        lengths = np.diff(offsets)[self.order]
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        take = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in self.order])
        self.vectors = vectors[take]
        self.device = torch.device(settings.device)
        if self.depth == count and self.device.type == "cpu":
            return  # the first stage would hand on every page: MaxSim over all of them is the same search
        single = mean_vectors(pages) if page_single is None else _unit(_single(page_single, count, "page"))
        self.single = torch.from_numpy(single[self.order]).to(self.device)
        longest = int(lengths.max())
        padded = torch.zeros((count, longest, vectors.shape[1]), dtype=torch.from_numpy(self.vectors[:1]).dtype)
        mask = torch.zeros((count, longest), dtype=torch.bool)
        for i in range(count):
            part = self.vectors[self.offsets[i] : self.offsets[i + 1]]
            padded[i, : len(part)] = torch.from_numpy(part)
            mask[i, : len(part)] = True
        self.padded, self.mask = padded.to(self.device), mask.to(self.device)

    def pools(
        self, queries: Sequence[np.ndarray], single: np.ndarray | None, labelled: np.ndarray
    ) -> list[dict[str, Any]]:
        """Pools of some rows: queries (each [Lq, D]), single fp32 [B, Ds] or None, labelled [B] positions in id
        order."""
        if not hasattr(self, "single"):
            offsets = np.concatenate([[0], np.cumsum([len(q) for q in queries])]).astype(np.int64)
            scores = maxsim_search(np.concatenate(queries), offsets, self.vectors, self.offsets)
            found = torch.arange(len(self.ids)).expand(len(queries), -1)
            return [self._row(torch.from_numpy(scores[b]), found[b], int(labelled[b])) for b in range(len(queries))]
        assert single is not None
        cosine = torch.from_numpy(single).to(self.device) @ self.single.T
        # Sorting in id order and stably gives the page id as second key; the first `depth` of it go on to MaxSim.
        best = torch.sort(cosine, dim=1, descending=True, stable=True).indices[:, : self.depth]
        rows = []
        for b, query in enumerate(queries):
            found = torch.sort(best[b]).values
            vectors = torch.from_numpy(np.ascontiguousarray(query)).to(self.device)[None]
            scores = maxsim(vectors, self.padded[found], None, self.mask[found])[0]
            row = self._row(scores.cpu(), found.cpu(), int(labelled[b]))
            if row["labelled_score"] is None:
                one = torch.tensor([int(labelled[b])], device=self.device)
                row["labelled_score"] = float(maxsim(vectors, self.padded[one], None, self.mask[one])[0, 0])
            rows.append(row)
        return rows

    def _row(self, scores: torch.Tensor, found: torch.Tensor, labelled: int) -> dict[str, Any]:
        """scores, found: [n] in id order. The pool is cut after sorting; equal scores across the cut are counted."""
        ranked = torch.sort(scores, descending=True, stable=True)
        size = min(self.settings.pool, len(found))
        top = ranked.values[:size].numpy()
        pages = found[ranked.indices[:size]].numpy()
        at = np.flatnonzero(pages == labelled)
        here = torch.nonzero(found == labelled)
        return {
            "candidates": [self.ids[i] for i in pages],
            "scores": top,
            "labelled_rank": int(at[0]) + 1 if len(at) else -1,
            "labelled_score": float(scores[int(here[0, 0])]) if len(here) else None,
            "ties": int((np.diff(top) == 0).sum()),
            "tie_at_cut": bool(len(found) > size and ranked.values[size] == ranked.values[size - 1]),
        }


def _single(array: np.ndarray, count: int, what: str) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim != 2 or len(array) != count:
        raise BadInput(
            f"{what} single vectors must be [{count}, Ds], got {array.shape}",
            where="miner vectors",
            todo="encode again",
        )
    return array


def mine_pools(
    pages: MultiVectors,
    queries: MultiVectors,
    rows: pd.DataFrame,
    settings: MiningSettings,
    out: Path,
    measures: dict[str, Any],
    *,
    page_single: np.ndarray | None = None,
    query_single: np.ndarray | None = None,
    worker: int = 0,
    workers: int = 1,
) -> None:
    """Mine every row's pool into `out/pools.parquet` (see `vdr.mining.files`) and `out/report.json` (counts, no
    times).

    rows: row_id, query_id, page_id (the labelled page); queries are found by query_id. With `workers` > 1 this call
    mines every `workers`-th shard only, and `merge_pools` joins them. Raises BadInput for a query or page that has
    no vectors, DamagedArtefact where `out` holds parts of another search.
    """
    out = Path(out)
    search = _Search(pages, page_single, settings)
    query_at = {query_id: i for i, query_id in enumerate(queries.ids)}
    missing = [q for q in rows["query_id"] if q not in query_at]
    if missing:
        raise BadInput(
            f"{len(missing)} queries have no vectors, e.g. {missing[0]!r}", where="rows.query_id", todo="encode them"
        )
    lost = [p for p in rows["page_id"] if p not in search.position]
    if lost:
        raise BadInput(
            f"{len(lost)} labelled pages have no vectors, e.g. {lost[0]!r}", where="rows.page_id", todo="encode them"
        )
    vectors, offsets = np.asarray(queries.vectors), np.asarray(queries.offsets)
    single = None
    if hasattr(search, "single"):
        single = (
            mean_vectors(queries) if query_single is None else _unit(_single(query_single, len(queries.ids), "query"))
        )
        if single.shape[1] != search.single.shape[1]:
            raise BadInput(
                f"single vectors of pages and queries differ in width: {search.single.shape[1]} and {single.shape[1]}",
                where="miner vectors",
                todo="use one miner for both",
            )
    ordered = rows.sort_values("row_id", kind="stable").reset_index(drop=True)
    shards = -(-len(ordered) // settings.shard_rows)
    _claim_parts(out, ordered, settings, len(search.ids))
    started, mined = time.perf_counter(), 0
    todo = [s for s in range(shards) if s % workers == worker and not _part(out, s).exists()]
    for shard in track(todo, "mine", "shard"):
        part = ordered.iloc[shard * settings.shard_rows : (shard + 1) * settings.shard_rows]
        at = [query_at[q] for q in part["query_id"]]
        found = search.pools(
            [vectors[offsets[i] : offsets[i + 1]] for i in at],
            None if single is None else single[at],
            np.array([search.position[p] for p in part["page_id"]]),
        )
        frame = pd.DataFrame(found)
        frame.insert(0, "row_id", part["row_id"].to_numpy())
        _write_part(out, shard, frame)
        mined += len(part)
    timing = measures.setdefault("timing", {})
    timing["seconds_mining"] = time.perf_counter() - started
    timing["rows_mined_here"] = mined
    if workers == 1:
        merge_pools(out, rows, settings, measures)


def _part(out: Path, shard: int) -> Path:
    return out / PARTS / f"pools-{shard:06d}.parquet"


_PART = POOLS.append(pa.field("ties", pa.int32())).append(pa.field("tie_at_cut", pa.bool_()))


def _write_part(out: Path, shard: int, frame: pd.DataFrame) -> None:
    write_table(_part(out, shard), frame, _PART)


def _claim_parts(out: Path, rows: pd.DataFrame, settings: MiningSettings, pages: int) -> None:
    """Note which search the parts belong to; refuse to mix them with another's."""
    text = "\n".join(
        f"{r}\t{q}\t{p}" for r, q, p in zip(rows["row_id"], rows["query_id"], rows["page_id"], strict=True)
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    claim_parts(out / PARTS, {"settings": settings.plain(), "pages": pages, "rows": digest}, "search")


def merge_pools(out: Path, rows: pd.DataFrame, settings: MiningSettings, measures: dict[str, Any]) -> None:
    """Join all parts into `out/pools.parquet` and remove them. Raises DamagedArtefact when a part is missing."""
    out = Path(out)
    shards = -(-len(rows) // settings.shard_rows)
    absent = [s for s in range(shards) if not _part(out, s).exists()]
    if absent:
        raise DamagedArtefact(
            f"{len(absent)} of {shards} parts are missing", where=out / PARTS, todo="run the miner again"
        )
    parts = [read_table(_part(out, s), _PART) for s in range(shards)]
    pools = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_PART.names)
    write_table(out / "pools.parquet", pools, POOLS)
    sizes = pools["candidates"].map(len)
    found = pools["labelled_rank"] > 0
    report = {
        "rows": len(pools),
        "pool_size": settings.pool,
        "rows_with_a_shorter_pool": int((sizes < settings.pool).sum()),
        "shortest_pool": int(sizes.min()) if len(pools) else 0,
        "labelled_page_found": int(found.sum()),
        "labelled_page_found_share": float(found.mean()) if len(pools) else None,
        "median_rank_of_found_labelled_page": float(pools.loc[found, "labelled_rank"].median())
        if found.any()
        else None,
        "equal_neighbours_in_pools": int(pools["ties"].sum()),
        "rows_with_equal_scores_at_the_cut": int(pools["tie_at_cut"].sum()),
        "tie_rule": "score descending, then page id ascending",
    }
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    measures.update(report)
    shutil.rmtree(out / PARTS)
