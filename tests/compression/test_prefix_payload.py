"""Prefix widths and payload accounting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vdr.compression.payload import PAPER_CONFIGURATIONS, equal_payload, payload_gib, reduction
from vdr.compression.prefix import PrefixProjection, Widths, narrow, prefix_rows
from vdr.errors import BadInput
from vdr.models.vectors import VectorSet


def vectors(dtype=np.float32) -> VectorSet:
    rows = np.random.default_rng(0).standard_normal((9, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[4] = 0
    return VectorSet(["a", "b"], rows.astype(dtype), np.array([0, 4, 9]))


def test_full_width_is_the_identity():
    full = vectors(np.float16)
    assert narrow(full, 16, Widths((4, 16))) is full


def test_narrow_slices_and_renormalises_and_keeps_zero_rows():
    got = narrow(vectors(), 4, (4, 16))
    want = vectors().vectors[:, :4]
    norm = np.linalg.norm(want, axis=1)
    np.testing.assert_allclose(np.linalg.norm(got.vectors, axis=1), np.where(norm > 0, 1, 0), atol=1e-6)
    np.testing.assert_allclose(got.vectors * norm[:, None], want, atol=1e-6)
    assert got.ids == ["a", "b"]


def test_an_untrained_width_is_refused_unless_named_post_hoc():
    with pytest.raises(BadInput, match=r"width 8 was not trained.*4, 16.*post-hoc"):
        narrow(vectors(), 8, (4, 16))
    assert narrow(vectors(), 8, (4, 16), post_hoc=True).width == 8
    for d in (0, 17):
        with pytest.raises(BadInput):
            narrow(vectors(), d, (4, 16), post_hoc=True)
    with pytest.raises(BadInput):
        narrow(vectors(), 4, (4, 8))
    with pytest.raises(BadInput):
        Widths((8, 4))


def test_projection_prefixes_are_nested():
    torch.manual_seed(0)
    head = PrefixProjection(12, Widths((4, 8, 16)))
    hidden, mask = torch.randn(2, 5, 12), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    full = head(hidden, mask)
    for d in (4, 8):
        torch.testing.assert_close(head(hidden, mask, d), prefix_rows(full, d))
    assert not full[0, 3:].any()
    with pytest.raises(BadInput):
        head(hidden, mask, 5)
    wider = PrefixProjection(12, Widths((16, 32))).grow(head.linear)
    torch.testing.assert_close(wider(hidden, mask, 16), full)
    with pytest.raises(BadInput):
        head.grow(wider.linear)


def test_zero_rows_have_a_zero_gradient():
    rows = torch.zeros(2, 8, requires_grad=True)
    prefix_rows(rows + torch.tensor([[0.0], [1.0]]), 4).sum().backward()
    assert torch.isfinite(rows.grad).all()
    assert not rows.grad[0].any()


def test_table_1_of_the_paper_follows_from_the_formula(reference_tables):
    table = reference_tables["table1_payload_gib_per_million"]
    for item in PAPER_CONFIGURATIONS:
        k, d, gib, compression = table[item.name]
        assert (item.k, item.d) == (k, d)
        assert round(item.gib_per_million, 2) == gib
        assert round(reduction(k, d), 1) == compression


def test_table_2_payloads_too(reference_tables):
    for name, row in reference_tables["table2_v3"].items():
        if name != "columns":
            assert payload_gib(1e6, row[1], row[2]) == pytest.approx(row[3], abs=0.00501), name  # printed to two decimals


def test_equal_payloads():
    assert equal_payload(4096, [64, 128, 256]) == [(64, 64), (128, 32), (256, 16)]
    assert round(payload_gib(1e6, 64, 64), 2) == 7.63
    with pytest.raises(BadInput):
        payload_gib(-1, 1, 1)


@pytest.fixture(scope="module")
def reference_tables():
    from vdr.compression.reference import evie

    return evie()
