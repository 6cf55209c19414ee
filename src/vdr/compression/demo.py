"""A tiny index of drawn vectors, built and searched for real: what the serving chapter shows first."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from vdr.compression.index import build_index, cascade
from vdr.compression.pooling import Pooling, compress, unit
from vdr.models.vectors import VectorSet

__all__ = ["drawn_pages", "index_lines"]


def drawn_pages(pages: int = 50, grid: tuple[int, int] = (8, 6), d: int = 32, seed: int = 0) -> tuple[VectorSet, VectorSet]:
    """Pages of a few regions each, and one query a page made of three of its tokens with noise. Random, not encoded."""
    rng = np.random.default_rng(seed)
    n = grid[0] * grid[1]
    topics = rng.standard_normal((pages, 6, d))
    rows = np.concatenate([unit(topic[np.sort(rng.integers(0, 6, n))] + 0.5 * rng.standard_normal((n, d))) for topic in topics])
    made = VectorSet([f"page-{i:02}" for i in range(pages)], rows, np.arange(pages + 1) * n, np.ones(len(rows), bool),
                     np.tile(np.array(grid, np.int32), (pages, 1)))
    asked = np.concatenate([rows[i * n + rng.integers(0, n, 3)] for i in range(pages)])
    queries = unit(asked + 0.2 * rng.standard_normal(asked.shape))
    return made, VectorSet([f"query-{i:02}" for i in range(pages)], queries, np.arange(pages + 1) * 3)


def index_lines() -> list[str]:
    """Build a raw and a HAC index in a scratch directory, search both and the cascade; one line each."""
    pages, queries = drawn_pages()
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        raw = build_index(pages, Path(scratch) / "raw")
        hac = build_index(compress(pages, Pooling("hac", 32, 6))[0], Path(scratch) / "hac")
        answers = {"raw": raw.search(queries, 5), "HAC": hac.search(queries, 5),
                   "HAC top 10, then raw": cascade(hac, raw, queries, queries, first=10, depth=5)}
    for name, found in answers.items():
        right = sum(found[q][0].page_id.split("-")[1] == q.split("-")[1] for q in queries.ids)
        size = {"raw": raw.payload, "HAC": hac.payload}.get(name, raw.payload + hac.payload)
        lines.append(f"{name:21} {size:7} bytes   own page first: {right} of {len(queries)}")
    return lines
