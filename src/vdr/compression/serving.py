"""Search latency, batch throughput and index memory (EV §6.5, Table 12's form), on the machine at hand.

Encoding and search are timed apart. Every number is a median over single queries with its quartiles; the four forms share one
encoding at the primary width, are built as real indexes on disk, and are timed in turn (form by form within each query), so
that a busy machine weighs on all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.compression.index import PageIndex, build_index, cascade
from vdr.compression.pooling import Pooling, compress
from vdr.compression.prefix import Widths, narrow
from vdr.errors import BadInput
from vdr.models.vectors import VectorSet, read_vectors
from vdr.study.sections.compression import CompressionSettings

__all__ = ["ServingCorpus", "measure_serving", "stratified"]

ServingCorpus = tuple[VectorSet, VectorSet]


def stratified(vectors: Path, names: Sequence[tuple[str, str]], pages: int, queries: int, seed: int = 42) -> ServingCorpus:
    """A corpus of ``pages`` pages, as many from each data set as it has and the share asks for, and up to ``queries`` queries.

    Ids are prefixed by their data set, which keeps them unique. EV: 1,000 pages of V3, 125 a domain, seed 42.
    """
    if not names:
        raise BadInput("there is no data set to serve", where="compression.serving_suite")
    rng = np.random.default_rng(seed)
    picked: list[ServingCorpus] = []
    for i, (suite, name) in enumerate(names):
        own_pages, own_queries = read_vectors(Path(vectors) / suite / name)
        parts = []
        for part, total in ((own_pages, pages), (own_queries, queries)):
            share = total * (i + 1) // len(names) - total * i // len(names)
            chosen = np.sort(rng.permutation(len(part))[:share])
            parts.append(_take(part, chosen, f"{name}/"))
        picked.append((parts[0], parts[1]))
    return _join([p for p, _ in picked]), _join([q for _, q in picked])


def _take(part: VectorSet, rows: np.ndarray, prefix: str) -> VectorSet:
    index = np.concatenate([np.arange(part.offsets[i], part.offsets[i + 1]) for i in rows]) if len(rows) else np.zeros(0, int)
    lengths = np.diff(part.offsets)[rows]
    return VectorSet([prefix + part.ids[i] for i in rows], part.vectors[index],
                     np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                     None if part.is_image is None else part.is_image[index], None if part.grid is None else part.grid[rows])


def _join(parts: Sequence[VectorSet]) -> VectorSet:
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(p.offsets) for p in parts]))]).astype(np.int64)
    image = None if any(p.is_image is None for p in parts) else np.concatenate([p.is_image for p in parts])
    grid = None if any(p.grid is None for p in parts) else np.concatenate([p.grid for p in parts])
    return VectorSet([name for p in parts for name in p.ids], np.concatenate([p.vectors for p in parts]), offsets, image, grid)


def measure_serving(corpus: ServingCorpus, settings: CompressionSettings, widths: Widths, scratch: Path, *,
                    encode: Callable[[int], Any] | None = None, repeats: int = 3) -> pd.DataFrame:
    """Time the four forms of Table 12: raw at full width, raw at d, HAC, and the cascade from HAC to raw at d.

    ``encode(i)`` encodes query i alone (None: encoding is not timed). Rows: form, vectors (a page), search_ms (median),
    search_q25_ms, search_q75_ms, encode_ms, e2e_ms, batch_search_qps, qps (with encoding), memory_mib, pages, queries.
    """
    pages, queries = corpus
    full, d = pages.width, settings.d
    at_full, at_d = queries, narrow(queries, d, widths, post_hoc=True)
    raw_full = build_index(pages, scratch / "raw-full")
    raw = build_index(narrow(pages, d, widths, post_hoc=True), scratch / f"raw-d{d}")
    pooling = Pooling("hac", d, settings.k, settings.w_pos)
    hac = build_index(compress(narrow(pages, d, widths, post_hoc=True), pooling)[0], scratch / pooling.name)
    first = min(settings.cascade, len(pages))

    def one(index: PageIndex, part: VectorSet) -> None:
        index.search(part, 10)

    forms: dict[str, tuple[Callable[[VectorSet, VectorSet], Any], list[PageIndex]]] = {
        f"raw d={full}": (lambda wide, slim: one(raw_full, wide), [raw_full]),
        f"raw d={d}": (lambda wide, slim: one(raw, slim), [raw]),
        f"HAC d={d}, K={settings.k}": (lambda wide, slim: one(hac, slim), [hac]),
        f"HAC top {first} → raw d={d}": (
            lambda wide, slim: cascade(hac, raw, slim, slim, first=first, depth=min(10, first)), [hac, raw]),
    }
    single: dict[str, list[float]] = {name: [] for name in forms}
    encode_ms: list[float] = []
    for i in range(len(queries)):
        wide, slim = _take(at_full, np.array([i]), ""), _take(at_d, np.array([i]), "")
        if encode is not None:
            encode_ms.append(_best(partial(encode, i), 1))
        for name, (ask, _) in forms.items():
            single[name].append(_best(partial(ask, wide, slim), repeats))
    rows = []
    for name, (ask, indexes) in forms.items():
        batches = []
        for start in range(0, len(queries) - settings.batch + 1, settings.batch):
            chosen = np.arange(start, start + settings.batch)
            wide, slim = _take(at_full, chosen, ""), _take(at_d, chosen, "")
            batches.append(_best(partial(ask, wide, slim), repeats))
        ms = np.array(single[name])
        batch_ms = float(np.median(batches)) if batches else float("nan")
        enc = float(np.median(encode_ms)) if encode_ms else float("nan")
        rows.append({
            "form": name, "vectors": len(indexes[0].vectors) / len(pages), "search_ms": float(np.median(ms)),
            "search_q25_ms": float(np.quantile(ms, 0.25)), "search_q75_ms": float(np.quantile(ms, 0.75)), "encode_ms": enc,
            "e2e_ms": enc + float(np.median(ms)), "batch_search_qps": 1e3 * settings.batch / batch_ms,
            "qps": 1e3 * settings.batch / (batch_ms + settings.batch * enc),
            "memory_mib": sum(index.memory for index in indexes) / 2**20, "pages": len(pages), "queries": len(queries)})
    return pd.DataFrame(rows)


def _best(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of the fastest of a few calls: what the work costs when nothing else interrupts it."""
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return 1e3 * min(spent)
