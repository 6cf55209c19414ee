"""Forms in which an encoder's pages are searched: raw, raw without context tokens, pooled; and their scores on every task.

A :class:`Variant` is one row of an EV table. :func:`score_variants` narrows, pools, searches exactly and scores with EV's
metrics; one data set at a time, so memory holds one data set's vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vdr.compression.pooling import Pooling, compress, image_only
from vdr.compression.prefix import Widths, narrow
from vdr.errors import BadInput
from vdr.evaluation.metrics import score_task
from vdr.evaluation.search import search
from vdr.models.vectors import VectorSet, read_vectors
from vdr.progress import track
from vdr.study.catalogue import load_suites
from vdr.study.sections.compression import CompressionSettings

__all__ = ["Variant", "score_variants", "suite_scores", "variants_of"]


@dataclass(frozen=True)
class Variant:
    """Width d, context tokens kept or not, and a pooling or none."""

    d: int
    pooling: Pooling | None = None
    context: bool = True

    @property
    def name(self) -> str:
        if self.pooling is not None:
            return self.pooling.name
        return f"raw-d{self.d}" + ("" if self.context else "-image")

    def pages(self, pages: VectorSet, widths: Widths, *, post_hoc: bool = False) -> VectorSet:
        """The set in this form."""
        narrowed = narrow(pages, self.d, widths, post_hoc=post_hoc)
        if self.pooling is not None:
            return compress(narrowed, self.pooling)[0]
        return narrowed if self.context else image_only(narrowed)


def variants_of(settings: CompressionSettings, full: int) -> list[Variant]:
    """Every variant that EV's tables need under a profile's settings, each once, for an encoder of width ``full``."""
    d, k = settings.d, settings.k
    found = [Variant(w) for w in (*settings.widths, full) if w <= full]
    found.append(Variant(d, context=False))
    found += [Variant(d, Pooling(method, d, k, settings.w_pos)) for method in ("hac", "ward", "grid", "colpali")]
    found.append(Variant(d, Pooling("hac", d, settings.second_k, settings.w_pos)))
    for budget in settings.budgets:
        for w in settings.payload_widths:
            if w <= full and budget % w == 0:
                found.append(Variant(w, Pooling("hac", w, budget // w, settings.w_pos)))
    for weight in settings.w_pos_sweep:
        found.append(Variant(d, Pooling("hac", d, k, weight)))
    return list(dict.fromkeys(found))


def score_variants(vectors: Path, datasets: Iterable[Any], variants: Sequence[Variant], widths: Widths, *, depth: int = 100,
                   label: str = "compress") -> pd.DataFrame:
    """Scores of every variant on every data set.

    Returns rows suite, dataset, variant, d, vectors (mean a page), bytes (16-bit, a page), seconds (pooling), and EV's metrics
    (× 100). Widths that were not trained are post-hoc truncations; the caller says so. ``datasets`` are those of
    ``vdr.corpus.access.load_suites``. Raises BadInput and DamagedArtefact as reading and scoring do.
    """
    import time

    rows = []
    for data in track(list(datasets), label, "data set"):
        where = f"{data.suite}/{data.name}"
        pages, queries = read_vectors(Path(vectors) / data.suite / data.name)
        if set(queries.ids) != set(data.queries) or set(pages.ids) != set(data.pages.ids):
            raise BadInput("vectors belong to another corpus", where=where, todo="encode the suites again")
        short: dict[int, VectorSet] = {}
        for variant in variants:
            if variant.d not in short:
                short[variant.d] = narrow(queries, variant.d, widths, post_hoc=True)
            began = time.perf_counter()
            made = variant.pages(pages, widths, post_hoc=True)
            spent = time.perf_counter() - began
            found = search(short[variant.d], made, depth=depth, tag=variant.name)
            scores = score_task(found.run, data.qrels, where=where)
            mean = len(made.vectors) / len(made)
            rows.append({"suite": data.suite, "dataset": data.name, "variant": variant.name, "d": variant.d, "vectors": mean,
                         "bytes": 2 * mean * variant.d, "seconds": spent, "ties": found.ties, **scores.means})
    return pd.DataFrame(rows)


def suite_scores(scores: pd.DataFrame, metric: str = "ndcg@10") -> pd.DataFrame:
    """Variants × suites: unweighted means over data sets, and ``avg`` over the suites (EV's Avg4 where there are four)."""
    table = scores.pivot_table(index="variant", columns="suite", values=metric, aggfunc="mean", sort=False)
    known = list(load_suites())  # the tables' order of columns
    table = table[sorted(table.columns, key=lambda name: (known.index(name) if name in known else len(known), name))]
    table["avg"] = table.mean(axis=1)
    return table


def ranks_of_relevant(ranking: Sequence[tuple[str, float]], qrels: Mapping[str, int]) -> float:
    """Rank of the first relevant page of a ranking, infinity when there is none."""
    for rank, (page, _) in enumerate(ranking, 1):
        if qrels.get(page, 0) > 0:
            return rank
    return float(np.inf)
