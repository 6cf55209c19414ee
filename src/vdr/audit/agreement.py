"""Agreement and cluster bootstrap. Points come from statsmodels and SciPy; the many resamples use the same formula on
arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import bootstrap
from statsmodels.stats.inter_rater import aggregate_raters, cohens_kappa, fleiss_kappa

__all__ = ["Estimate", "binary_table", "cluster_share", "cohen", "fleiss", "kappa_of_tables", "resampled_interval"]


class Estimate(dict):
    """A figure with its pedigree: value, low, high (None where undefined), n judgements or views, clusters (queries)."""

    def __init__(self, value: float | None, low: float | None, high: float | None, n: int, clusters: int) -> None:
        super().__init__(value=value, low=low, high=high, n=n, clusters=clusters)


def _plain(value: float) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def cluster_share(
    numerators: np.ndarray, denominators: np.ndarray, *, resamples: int, level: float, seed: int
) -> Estimate:
    """A ratio of sums with a percentile interval, clusters drawn with replacement (SciPy's `bootstrap`, paired).

    numerators, denominators: per cluster [Q]. Clusters with denominator 0 do not contribute and are not drawn. With
    fewer than two contributing clusters the interval is undefined.
    """
    numerators, denominators = np.asarray(numerators, float), np.asarray(denominators, float)
    kept = denominators > 0
    numerators, denominators = numerators[kept], denominators[kept]
    n, clusters = int(denominators.sum()), int(kept.sum())
    if clusters == 0:
        return Estimate(None, None, None, 0, 0)
    value = float(numerators.sum() / denominators.sum())
    if clusters < 2:
        return Estimate(value, None, None, n, clusters)

    def ratio(top: np.ndarray, bottom: np.ndarray, axis: int = -1) -> np.ndarray:
        return top.sum(axis=axis) / bottom.sum(axis=axis)

    drawn = bootstrap(
        (numerators, denominators),
        ratio,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=resamples,
        confidence_level=level,
        batch=2000,
        rng=np.random.default_rng(seed),
    )
    return Estimate(value, _plain(drawn.confidence_interval.low), _plain(drawn.confidence_interval.high), n, clusters)


def binary_table(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The 2×2 counts [[no/no, no/yes], [yes/no, yes/yes]] of two boolean vectors of one length."""
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    return np.array(
        [[np.sum(~first & ~second), np.sum(~first & second)], [np.sum(first & ~second), np.sum(first & second)]],
        dtype=float,
    )


def cohen(table: np.ndarray) -> float | None:
    """Cohen's κ of a square count table (statsmodels). None without judgements, or where expected agreement is 1."""
    table = np.asarray(table, float)
    total = table.sum()
    if total == 0 or np.isclose((table.sum(0) @ table.sum(1)) / total**2, 1.0):
        return None
    return float(cohens_kappa(table, return_results=False))


def kappa_of_tables(tables: np.ndarray) -> np.ndarray:
    """κ of many tables [..., k, k] at once; NaN where `cohen` gives None."""
    tables = np.asarray(tables, float)
    total = tables.sum(axis=(-1, -2))
    with np.errstate(invalid="ignore", divide="ignore"):
        observed = np.trace(tables, axis1=-2, axis2=-1) / total
        expected = (tables.sum(-1) * tables.sum(-2)).sum(-1) / total**2
        kappa = (observed - expected) / (1 - expected)
    return np.where(np.isclose(expected, 1.0) | (total == 0), np.nan, kappa)


def resampled_interval(
    sums: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], *, resamples: int, level: float, seed: int
) -> tuple[float | None, float | None]:
    """Percentile interval of a statistic of summed counts, clusters drawn with replacement.

    sums: per cluster [Q, ...]; statistic maps drawn sums [R, ...] to [R]. Undefined draws (NaN) are left out.
    """
    sums = np.asarray(sums, float)
    clusters = sums.shape[0]
    if clusters < 2:
        return None, None
    weights = np.random.default_rng(seed).multinomial(clusters, np.full(clusters, 1 / clusters), size=resamples)
    drawn = statistic(np.tensordot(weights.astype(float), sums, axes=1))
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return None, None
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def fleiss(labels: np.ndarray) -> float | None:
    """Fleiss' κ of a [candidates, annotators] array of category codes (statsmodels); None where undefined."""
    labels = np.asarray(labels)
    if labels.size == 0 or labels.shape[1] < 2:
        return None
    counts, _ = aggregate_raters(labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _plain(float(fleiss_kappa(counts)))
