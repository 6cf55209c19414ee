"""MaxSim against its reference twin: shapes, masks, gradients, ragged search, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vdr.errors import BadInput
from vdr.kernels import reference
from vdr.kernels.maxsim import maxsim, maxsim_search, maxsim_search_widths, unit_rows

FAST = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

#: (query's type, page's type): what pages are stored in, and bf16 on both sides, which a processor may multiply itself.
KINDS = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16)]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@FAST
@given(st.integers(0, 9999), st.sampled_from(["pair", "batch", "candidates"]), st.sampled_from(["sum", "mean"]),
       st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 4, 33]),
       st.sampled_from([1, 1 << 20]), st.booleans())
def test_values_and_gradients_equal_the_reference(path, seed, shape, reduce, b, c, lq, lp, d, budget, masked):
    lead_q, lead_p = {"pair": ((), ()), "batch": ((b,), (c,)), "candidates": ((b,), (b, c))}[shape]
    q, p = draw(seed, *lead_q, lq, d), draw(seed + 1, *lead_p, lp, d)
    qm = pm = None
    if masked:
        qm, pm = draw(seed + 2, *lead_q, lq) > 0, draw(seed + 3, *lead_p, lp) > 0
        pm[..., 0] = True
    q1, p1, q2, p2 = (x.clone().requires_grad_() for x in (q, p, q, p))
    got = maxsim(q1, p1, qm, pm, reduce, memory_budget=budget)
    want = reference.maxsim(q2, p2, qm, pm, reduce)
    assert got.dtype == torch.float32
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    weight = draw(seed + 4, *got.shape) if got.dim() else torch.tensor(1.7)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    torch.testing.assert_close(q1.grad, q2.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(p1.grad, p2.grad, rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing_and_gets_no_gradient(path):
    q, p = draw(0, 2, 3, 8), draw(1, 3, 5, 8)
    plain = maxsim(q, p, reduce="mean")
    q2 = torch.cat([q, torch.zeros(2, 4, 8)], 1).requires_grad_()
    p2 = torch.cat([p, torch.zeros(3, 2, 8)], 1).requires_grad_()
    qm, pm = torch.arange(7).expand(2, 7) < 3, torch.arange(7).expand(3, 7) < 5
    padded = maxsim(q2, p2, qm, pm, reduce="mean")
    torch.testing.assert_close(padded, plain)
    padded.sum().backward()
    assert not q2.grad[:, 3:].any()
    assert not p2.grad[:, 5:].any()


def test_all_negative_similarities_stay_negative_beside_padding(path):
    q, p = torch.ones(1, 2, 4), -torch.ones(1, 3, 4)
    p = torch.cat([p, torch.zeros(1, 2, 4)], 1)
    assert maxsim(q, p, None, torch.tensor([[True, True, True, False, False]])).item() == -8.0


def test_masked_page_and_masked_query_have_defined_scores(path):
    q, p = draw(0, 2, 3, 4).requires_grad_(), draw(1, 2, 5, 4).requires_grad_()
    qm, pm = torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    qm[1], pm[1] = False, False
    scores = maxsim(q, p, qm, pm, "mean")
    assert scores[0, 1] == -torch.inf
    assert torch.isfinite(scores[0, 0])
    assert not scores[1].any()
    scores[0].sum().backward()
    assert torch.isfinite(q.grad).all()
    assert torch.isfinite(p.grad).all()
    assert not p.grad[1].any()


def test_equal_products_give_the_gradient_to_the_first_vector(path):
    q, p = torch.ones(1, 1, 2), torch.ones(1, 3, 2).requires_grad_()
    maxsim(q, p).sum().backward()
    assert p.grad[0, 0].tolist() == [1, 1]
    assert not p.grad[0, 1:].any()


def test_empty_batches_views_and_mixed_dtypes(path):
    assert maxsim(torch.zeros(0, 3, 4), torch.zeros(2, 5, 4)).shape == (0, 2)
    assert maxsim(torch.zeros(2, 3, 4), torch.zeros(2, 0, 5, 4)).shape == (2, 0)
    q, p = draw(0, 4, 3, 2).transpose(1, 2), draw(1, 4, 3, 5).transpose(1, 2)
    torch.testing.assert_close(maxsim(q, p), maxsim(q.contiguous(), p.contiguous()))
    mixed = maxsim(q.bfloat16(), p)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, maxsim(q.bfloat16().float(), p))


def test_products_accumulate_in_fp32_also_under_autocast_and_in_bf16(path):
    q, p = torch.ones(1, 4096), torch.cat([torch.full((1, 1), 256.0), torch.full((1, 4095), 0.5)], 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert maxsim(q.bfloat16(), p.bfloat16()).item() == 256 + 4095 * 0.5


@pytest.mark.parametrize("bad", ["width", "mask", "rank", "reduce", "integers", "batch"])
def test_inputs_that_do_not_fit_are_refused(bad):
    q, p, kw = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), {}
    if bad == "width":
        p = torch.zeros(2, 5, 6)
    elif bad == "mask":
        kw = {"p_mask": torch.ones(2, 4, dtype=torch.bool)}
    elif bad == "rank":
        q = torch.zeros(3, 4)
    elif bad == "reduce":
        kw = {"reduce": "max"}
    elif bad == "integers":
        q = q.int()
    else:
        p = torch.zeros(3, 2, 5, 4)
    with pytest.raises(BadInput):
        maxsim(q, p, **kw)


@FAST
@given(st.integers(0, 9999), st.lists(st.integers(0, 40), min_size=1, max_size=4),
       st.lists(st.integers(0, 40), min_size=1, max_size=7), st.sampled_from([1, 4, 33, 64, 128]))
def test_ragged_search_equals_the_reference(path, seed, queries, pages, d):
    qo, po = np.cumsum([0, *queries]), np.cumsum([0, *pages])
    q, p = draw(seed, int(qo[-1]), d).numpy(), draw(seed + 1, int(po[-1]), d).numpy()
    got = maxsim_search(q, qo, p, po)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference.maxsim_search(q, qo, p, po), rtol=1e-5, atol=1e-4)


def test_search_takes_tensors_and_half_precision(path):
    q, p = draw(0, 7, 16), draw(1, 30, 16)
    qo, po = torch.tensor([0, 3, 7]), torch.tensor([0, 10, 30])
    scores = maxsim_search(q, qo, p, po)
    assert isinstance(scores, torch.Tensor)
    for dtype in (torch.float16, torch.bfloat16):
        low = maxsim_search(q.to(dtype), qo, p.to(dtype), po)
        torch.testing.assert_close(low, maxsim_search(q.to(dtype).float(), qo, p.to(dtype).float(), po))


def test_half_precision_keeps_subnormals_infinities_and_signs(path):
    bits = torch.arange(0, 1 << 16, 37, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    bits = bits[torch.isfinite(bits)]
    scores = maxsim_search(torch.ones(1, 1), [0, 1], bits[:, None], np.arange(len(bits) + 1))
    assert torch.equal(scores[0], bits.float())


@pytest.mark.parametrize("lq", [*range(1, 27), 31, 32, 33, 40, 41, 47, 48, 49, 56, 57, 64, 96, 97, 105])
def test_every_block_of_lanes_and_rows(path, lq):
    """Query vectors around halves of a register and blocks of three, page vectors around groups of 4, 6 and 8 rows, every storage type."""
    for lp in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 33, 100):
        q, p = draw(lq, lq, 24), draw(lp, lp + 5, 24)
        qo, po = [0, lq // 2, lq], [0, 5, 5 + lp]
        for asked, kind in KINDS:
            query, stored = q.to(asked), p.to(kind)
            got = maxsim_search(query, qo, stored, po)
            want = reference.maxsim_search(query.float().numpy(), qo, stored.float().numpy(), po)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4, err_msg=f"{lp} page vectors, {asked}, {kind}")


@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 128, 171, 200, 683, 1025])
def test_every_width_and_strip(path, d):
    """Widths around the converter's registers and the prefetcher's chunks; pages around the strip that stays in cache."""
    strip = max(24, 16 * 1024 // 4 // d // 24 * 24)
    for lp in {1, 23, 25, *(strip + more for more in (-1, 0, 1) if strip < 600)}:
        q, p = draw(d, 5, d), draw(lp, lp, d)
        for asked, kind in KINDS:
            query, stored = q.to(asked), p.to(kind)
            got = maxsim_search(query, [0, 2, 5], stored, [0, lp])
            want = reference.maxsim_search(query.float().numpy(), [0, 2, 5], stored.float().numpy(), [0, lp])
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4, err_msg=f"{lp} page vectors, {asked}, {kind}")


def test_bf16_pages_chosen_and_bad_values_by_the_processors_own_products(path):
    q, p = draw(0, 21, 33).bfloat16(), draw(1, 60, 33).bfloat16()
    p[25, 32], p[45, 0] = torch.nan, torch.inf
    qo, po = [0, 9, 21], [0, 20, 40, 60]
    got = maxsim_search(q, qo, p, po, pages=[2, 0])
    assert torch.equal(got.nan_to_num(7, 8, 9), maxsim_search(q, qo, p, po)[:, [2, 0]].nan_to_num(7, 8, 9))
    whole = maxsim_search(q, qo, p, po)
    assert whole[:, 1].isnan().all()
    assert not whole[:, 2].isfinite().any()
    np.testing.assert_allclose(whole[:, 0], reference.maxsim_search(q.float().numpy(), qo, p.float().numpy(), po)[:, 0], rtol=1e-5)


def test_some_pages_alone_in_the_order_given(path):
    q, p, po = draw(0, 5, 16), draw(1, 40, 16), [0, 9, 9, 30, 40]
    whole = maxsim_search(q, [0, 2, 5], p, po)
    assert torch.equal(maxsim_search(q, [0, 2, 5], p, po, pages=[3, 0, 1, 3]), whole[:, [3, 0, 1, 3]])
    assert maxsim_search(q, [0, 2, 5], p, po, pages=[]).shape == (2, 0)
    with pytest.raises(BadInput, match="page numbers"):
        maxsim_search(q, [0, 2, 5], p, po, pages=[4])


def test_several_widths_in_one_pass_equal_slicing_and_renormalising(path):
    q, p = draw(0, 50, 32), draw(1, 90, 32)
    p[3] = 0.0
    p[4, :8] = 0.0  # zero at the narrow width only
    qo, po, widths = np.array([0, 20, 20, 50]), np.array([0, 7, 50, 90]), [8, 16, 32]
    got = maxsim_search_widths(q, qo, p, po, widths)
    for scores, w in zip(got, widths, strict=True):
        want = reference.maxsim_search(unit_rows(q[:, :w]).numpy(), qo, unit_rows(p[:, :w]).numpy(), po)
        np.testing.assert_allclose(scores.numpy(), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(BadInput, match="widths"):
        maxsim_search_widths(q, qo, p, po, [16, 8])


def test_threads_change_nothing(monkeypatch):
    q, p, po = draw(0, 40, 64).numpy(), draw(1, 20_000, 64).numpy(), np.arange(0, 20_001, 40)
    one, many = [], []
    for workers, out in (("1", one), ("3", many)):
        monkeypatch.setenv("OMP_NUM_THREADS", workers)
        out.append(maxsim_search(q, [0, 40], p, po))
    assert np.array_equal(one[0], many[0])


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 4, 3], []])
def test_search_refuses_offsets_that_do_not_fit(offsets):
    with pytest.raises(BadInput, match="page_offsets"):
        maxsim_search(np.zeros((1, 4), np.float32), [0, 1], np.zeros((3, 4), np.float32), offsets)


def test_one_bad_vector_does_not_leak_into_other_items(path):
    q, p = draw(0, 4, 8), draw(1, 9, 8)
    q[0] = torch.nan
    scores = maxsim_search(q, [0, 2, 4], p, [0, 4, 9])
    assert torch.isnan(scores[0]).all()
    assert torch.isfinite(scores[1]).all()


def test_half_precision_gradients_come_back_in_their_own_type(path):
    q, p = draw(0, 2, 3, 8).bfloat16().requires_grad_(), draw(1, 4, 5, 8).half().requires_grad_()
    maxsim(q, p, reduce="mean").sum().backward()
    assert q.grad.dtype == torch.bfloat16
    assert p.grad.dtype == torch.float16
    q32, p32 = q.detach().float().requires_grad_(), p.detach().float().requires_grad_()
    maxsim(q32, p32, reduce="mean").sum().backward()
    torch.testing.assert_close(q.grad.float(), q32.grad, rtol=1e-2, atol=1e-2)


def test_backward_keeps_no_score_tensor(path):
    """What autograd holds on to is an index per (query vector, page), not the products with every page vector."""
    held = []
    q, p = draw(0, 4, 8, 16).requires_grad_(), draw(1, 6, 50, 16).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x.numel()) or x, lambda x: x):
        scores = maxsim(q, p)
    scores.sum().backward()
    assert max(held) == p.numel()
    assert sum(held) < 4 * 8 * 6 * 50


def test_gradients_do_not_depend_on_threads(monkeypatch):
    grads = []
    for workers in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", workers)
        q, p = draw(0, 16, 20, 32).requires_grad_(), draw(1, 40, 60, 32).requires_grad_()
        maxsim(q, p, reduce="mean").square().sum().backward()
        grads.append((q.grad, p.grad))
    assert torch.equal(grads[0][0], grads[1][0])
    assert torch.equal(grads[0][1], grads[1][1])
