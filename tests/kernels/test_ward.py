"""Ward against SciPy's: identical partitions, ties, odd sizes, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vdr.errors import BadInput
from vdr.kernels import native
from vdr.kernels.ward import ward_batch, ward_labels, ward_pages, ward_reference


def vectors(seed: int, n: int, d: int, kind: str = "random") -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    if kind == "topics":  # pages look like this: regions of similar vectors
        x = rng.standard_normal((7, d))[rng.integers(0, 7, n)] + 0.3 * x
    elif kind == "blank":  # mostly background, equal but for the last digits
        x[rng.random(n) < 0.6] = x[0]
        x += 1e-4 * rng.standard_normal((n, d))
    elif kind == "scales":
        x *= 10.0 ** rng.uniform(-3, 3, (n, 1))
    return x.astype(np.float32)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), n=st.integers(1, 90), d=st.sampled_from([1, 2, 4, 33, 64]), k=st.integers(1, 40),
       kind=st.sampled_from(["random", "topics", "blank", "scales"]))
def test_partitions_equal_scipy(compiled, seed, n, d, k, kind):
    x = vectors(seed, n, d, kind)
    assert np.array_equal(ward_labels(x, k), ward_reference(x, k))


@pytest.mark.parametrize("kind", ["random", "topics", "blank"])
@pytest.mark.parametrize(("n", "d"), [(768, 64), (1024, 64), (500, 128)])
def test_pages_of_full_size_equal_scipy(compiled, kind, n, d):
    x = vectors(n + d, n, d, kind)
    for k in (1, 32, 64, n - 1):
        assert np.array_equal(ward_labels(x, k), ward_reference(x, k))
    assert native.fallbacks() == {}


@pytest.mark.parametrize("n", [*range(2, 70), 79, 80, 81, 95, 96, 97, 111, 112, 113, 127, 128, 129, 255, 256, 257, 300, 511, 513])
def test_partitions_equal_scipy_at_every_edge_of_the_matrix(compiled, n):
    """Rows of the matrix are padded to registers and squeezed as clusters go; every size around a tile and a stride."""
    for d in (1, 7, 16):
        x = vectors(n, n, d)
        for k in (1, 2, n // 2 or 1, n - 1):
            assert np.array_equal(ward_labels(x, k), ward_reference(x, k)), (n, d, k)
    assert native.fallbacks() == {}


def within(x: np.ndarray, labels: np.ndarray) -> float:
    return sum(((x[labels == c].astype(float) - x[labels == c].mean(0, dtype=float)) ** 2).sum() for c in set(labels))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), n=st.integers(2, 40), k=st.integers(1, 12))
def test_ties_give_k_clusters_of_the_same_cost_as_scipy_without_ties(path, seed, n, k):
    """Integer grids are full of exact ties: the partition may differ from SciPy's, its size may not."""
    x = np.random.default_rng(seed).integers(0, 3, (n, 2)).astype(np.float32)
    labels = ward_labels(x, k)
    assert sorted(set(labels.tolist())) == list(range(min(k, n)))
    assert np.array_equal(labels, ward_labels(x.copy(), k))
    distinct = len(np.unique(x, axis=0))
    if k >= distinct:  # equal vectors are merged before any others
        assert within(x, labels) == 0


def test_equal_and_zero_vectors(path):
    x = np.zeros((50, 8), np.float32)
    x[30:] = 1.0
    labels = ward_labels(x, 2)
    assert labels[:30].tolist() == [0] * 30
    assert labels[30:].tolist() == [1] * 20
    assert ward_labels(x[:1], 3).tolist() == [0]
    assert ward_labels(x, 50).tolist() == list(range(50))
    assert set(ward_labels(x, 1)) == {0}


def test_labels_are_numbered_by_the_smallest_member(path):
    x = np.array([[9.0], [0.0], [9.1], [0.1], [5.0]], np.float32)
    assert ward_labels(x, 3).tolist() == [0, 1, 0, 1, 2]


def test_views_and_low_precision_are_read_as_fp32(path):
    x = vectors(3, 60, 16)
    assert np.array_equal(ward_labels(x.astype(np.float64)[::2, ::2], 5), ward_labels(x[::2, ::2].copy(), 5))
    half = x.astype(np.float16)
    assert np.array_equal(ward_labels(half, 5), ward_labels(half.astype(np.float32), 5))


@pytest.mark.parametrize("bad", ["k", "empty", "rank", "nan", "inf"])
def test_bad_input_is_refused(path, bad):
    x, k = vectors(0, 10, 4), 3
    if bad == "k":
        k = 0
    elif bad == "empty":
        x = x[:0]
    elif bad == "rank":
        x = x[0]
    else:
        x[4, 1] = np.nan if bad == "nan" else np.inf
    with pytest.raises(BadInput, match="vector 4" if bad in ("nan", "inf") else "Ward"):
        ward_labels(x, k)


def test_many_pages_over_threads_equal_one_by_one():
    pages = [vectors(i, 20 + 7 * i, 16) for i in range(9)]
    for got, page in zip(ward_pages(pages, 6, workers=3), pages, strict=True):
        assert np.array_equal(got, ward_labels(page, 6))
    assert ward_pages([], 6) == []


@pytest.mark.parametrize("k", [1, 4, 15, 30])
def test_the_batched_device_path_equals_the_kernel(k):
    """The path for a GPU, run here on the CPU (it is plain torch)."""
    pages = [vectors(i, 30, 8, "topics") for i in range(5)]
    got = ward_batch(torch.from_numpy(np.stack(pages)), k)
    assert np.array_equal(got.numpy(), np.stack([ward_labels(page, k) for page in pages]))
    if torch.cuda.is_available():
        assert torch.equal(ward_batch(torch.from_numpy(np.stack(pages)).cuda(), k).cpu(), got)
