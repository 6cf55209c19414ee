"""HAC and its comparators: Algorithm 2 step by step, odd grids, bad input, determinism."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdr.compression.pooling import (
    Pooling,
    blend,
    centroids,
    compress,
    grid_cells,
    image_only,
    labels_on_device,
    pool_page,
    position_features,
    unit,
)
from vdr.errors import BadInput
from vdr.kernels.ward import ward_reference
from vdr.models.vectors import VectorSet

GRIDS = [(1, 1), (1, 9), (9, 1), (6, 8), (5, 7), (2, 3)]


def tokens(seed: int, n: int, d: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def page_set(grids: list[tuple[int, int]], context: int = 3, d: int = 32) -> VectorSet:
    """Context tokens before and behind the image tokens, as a processor leaves them."""
    lengths = [h * w + 2 * context for h, w in grids]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    image = np.concatenate([[False] * context + [True] * (h * w) + [False] * context for h, w in grids])
    return VectorSet([f"p{i}" for i in range(len(grids))], unit(tokens(7, int(offsets[-1]), d)), offsets, image,
                     np.array(grids, dtype=np.int32))


def by_the_book(u: np.ndarray, grid: tuple[int, int], d: int, k: int, w: float) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 2 in plain Python and fp64: the twin of pool_page."""
    v = [row[:d] / np.linalg.norm(row[:d]) for row in u.astype(np.float64)]
    height, width = grid
    m = d // 4
    z = []
    for i, row in enumerate(v):
        r, c = divmod(i, width)
        x, y = c / max(width - 1, 1), r / max(height - 1, 1)
        gamma = [10000 ** (j / (m - 1)) if m > 1 else 1.0 for j in range(m)]
        p = np.array([f(g * s) for s in (x, y) for f in (math.sin, math.cos) for g in gamma])
        mixed = (1 - w) * row + w * p / np.linalg.norm(p)
        z.append(mixed / np.linalg.norm(mixed))
    labels = ward_reference(np.array(z), k)
    means = np.array([np.mean([v[i] for i in range(len(v)) if labels[i] == c], axis=0) for c in range(labels.max() + 1)])
    return labels, means / np.linalg.norm(means, axis=1, keepdims=True)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("d", "k"), [(32, 5), (16, 1), (4, 3), (8, 100)])
def test_hac_is_algorithm_2(grid, d, k):
    u = tokens(grid[0] * 10 + grid[1], grid[0] * grid[1])
    got = pool_page(u, grid, Pooling("hac", d, k, 0.1))
    labels, means = by_the_book(u, grid, d, k, 0.1)
    assert np.array_equal(got.labels, labels)
    assert got.centroids.dtype == np.float16
    assert got.centroids.shape == (min(k, len(u)), d)
    np.testing.assert_allclose(got.centroids.astype(np.float64), means, atol=1e-3)


def test_position_features_by_hand():
    table = position_features(2, 3, 8)  # m = 2: frequencies 1 and 10,000
    x, y = 2 / 2, 1 / 1  # the last token
    raw = np.array([math.sin(x), math.sin(1e4 * x), math.cos(x), math.cos(1e4 * x),
                    math.sin(y), math.sin(1e4 * y), math.cos(y), math.cos(1e4 * y)])
    np.testing.assert_allclose(table[5], raw / np.linalg.norm(raw), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(table, axis=1), 1, atol=1e-6)
    assert np.isfinite(position_features(1, 1, 4)).all()


def test_position_pulls_tokens_of_one_place_together():
    """Two equal texts far apart are one cluster for semantics alone, two with the position term."""
    v = np.zeros((16, 8), np.float32)
    v[:, 0] = 1.0
    left_right = [i % 4 // 2 for i in range(16)]
    got = pool_page(v, (4, 4), Pooling("hac", 8, 2, 0.5)).labels
    assert len(set(got.tolist())) == 2
    spread = [np.var([divmod(i, 4) for i in range(16) if got[i] == c], axis=0).sum() for c in (0, 1)]
    assert max(spread) < np.var([divmod(i, 4) for i in range(16)], axis=0).sum()
    assert sorted(set(left_right)) == [0, 1]


def test_w_pos_zero_is_semantic_ward_and_one_is_position_alone():
    u = tokens(0, 48)
    assert np.array_equal(pool_page(u, (6, 8), Pooling("hac", 32, 7, 0.0)).labels,
                          pool_page(u, (6, 8), Pooling("ward", 32, 7)).labels)
    v = unit(u)
    np.testing.assert_allclose(blend(v, (6, 8), 1.0), position_features(6, 8, 32), atol=1e-6)


def test_centroids_are_means_of_the_original_vectors_not_of_the_blend():
    u = tokens(1, 6, 8)
    got = pool_page(u, (2, 3), Pooling("hac", 8, 1, 0.9))
    mean = unit(u).mean(0)
    np.testing.assert_allclose(got.centroids[0].astype(np.float32), mean / np.linalg.norm(mean), atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["hac", "ward", "grid", "colpali"]), st.integers(1, 9), st.integers(1, 9), st.integers(1, 40))
def test_every_method_gives_unit_centroids_and_a_partition(method, height, width, k):
    n = height * width
    got = pool_page(tokens(n + k, n), (height, width), Pooling(method, 16, k))
    assert len(got.labels) == n
    assert sorted(set(got.labels.tolist())) == list(range(len(got.centroids)))
    assert len(got.centroids) == min(k, n) or (method == "grid" and len(got.centroids) <= k)
    np.testing.assert_allclose(np.linalg.norm(got.centroids.astype(np.float32), axis=1), 1, atol=2e-3)


def test_grid_cells_tile_the_page():
    assert grid_cells((32, 32), 32) in ((8, 4), (4, 8))
    assert grid_cells((6, 8), 12) == (3, 4)
    assert grid_cells((1, 40), 32) == (1, 32)
    labels = pool_page(tokens(2, 48), (6, 8), Pooling("grid", 16, 12)).labels.reshape(6, 8)
    assert (labels[:2, :2] == labels[0, 0]).all()
    assert np.bincount(labels.ravel()).tolist() == [4] * 12


def test_zero_vectors_stay_zero():
    got = pool_page(np.zeros((6, 8), np.float32), (2, 3), Pooling("ward", 8, 2))
    assert not got.centroids.any()
    opposite = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
    assert not centroids(opposite, np.zeros(2, np.int32)).any()


def test_centroids_without_the_compiler(monkeypatch):
    v, labels = unit(tokens(3, 50)), np.arange(50, dtype=np.int32) % 7
    native = centroids(v, labels)
    monkeypatch.setenv("VDR_NATIVE", "0")
    np.testing.assert_allclose(centroids(v, labels), native, atol=1e-6)


def test_the_page_order_and_the_number_of_threads_change_nothing():
    pages = page_set([(6, 8), (1, 5), (3, 3), (6, 8)])
    first, labels = compress(pages, Pooling("hac", 16, 4), workers=1)
    second, _ = compress(pages, Pooling("hac", 16, 4), workers=3)
    assert np.array_equal(first.vectors, second.vectors)
    assert np.diff(first.offsets).tolist() == [4, 4, 4, 4]
    assert [len(part) for part in labels] == [48, 5, 9, 48]
    alone = pool_page(image_only(pages).item(2), (3, 3), Pooling("hac", 16, 4))
    assert np.array_equal(first.item(2), alone.centroids)


@pytest.mark.parametrize("method", ["hac", "ward"])
def test_the_device_path_gives_the_same_partitions(method):
    """Run here on the CPU: the batched path is plain torch, whatever the device."""
    pages = page_set([(6, 8), (3, 3), (6, 8), (1, 5), (6, 8)])
    pooling = Pooling(method, 16, 4)
    _, want = compress(pages, pooling)
    got = labels_on_device(image_only(pages), [(6, 8), (3, 3), (6, 8), (1, 5), (6, 8)], pooling, "cpu", budget=40_000)
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    with pytest.raises(BadInput, match="p1"):
        labels_on_device(image_only(pages), [(6, 8), (2, 3), (6, 8), (1, 5), (6, 8)], pooling, "cpu")


def test_context_tokens_are_left_out():
    pages = page_set([(2, 2), (1, 3)], context=2)
    images = image_only(pages)
    assert np.diff(images.offsets).tolist() == [4, 3]
    assert np.array_equal(images.item(1), pages.item(1)[2:5])


def test_half_precision_and_views():
    u = tokens(4, 48).astype(np.float16)
    wide = np.zeros((48, 64), np.float16)
    wide[:, ::2] = u
    a, b = (pool_page(x, (6, 8), Pooling("hac", 16, 5)) for x in (wide[:, ::2], u.copy()))
    assert np.array_equal(a.labels, b.labels)


@pytest.mark.parametrize(("grid", "d", "nan"), [((4, 4), 16, False), ((3, 4), 64, False), ((3, 4), 16, True)])
def test_pages_that_do_not_fit_are_refused(grid, d, nan):
    u = tokens(0, 12)
    if nan:
        u[3, 2] = np.nan
    with pytest.raises(BadInput):
        pool_page(u, grid, Pooling(d=d))


@pytest.mark.parametrize("bad", [{"method": "mean"}, {"d": 30}, {"d": 0}, {"k": 0}, {"w_pos": 1.5}])
def test_settings_that_do_not_fit_are_refused(bad):
    with pytest.raises(BadInput):
        Pooling(**bad)


def test_the_page_at_fault_is_named():
    pages = page_set([(2, 2), (2, 3)])
    wrong = VectorSet(pages.ids, pages.vectors, pages.offsets, pages.is_image, np.array([[2, 2], [2, 2]], np.int32))
    with pytest.raises(BadInput, match=r"p1.*6 image tokens on a grid of 2×2"):
        compress(wrong, Pooling(d=16, k=2))
