"""The Triton path against its twin, the torch path: on a GPU, or in Triton's interpreter where Triton is installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from vdr.kernels import triton_maxsim
from vdr.kernels.maxsim import _sliced, maxsim

pytest.importorskip("triton", reason="triton is not installed (it comes with torch's CUDA builds)")

HERE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.mark.skipif(HERE == "cuda" or INTERPRETED, reason="the kernel runs in this process")
def test_the_kernel_in_the_interpreter():
    """Without a GPU these tests run again in a process that interprets the kernel."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "VDR_NATIVE": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


needs_kernel = pytest.mark.skipif(HERE == "cpu" and not INTERPRETED, reason="no GPU and Triton's interpreter is off in this process")


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("b", "c", "lq", "lp", "d"), [(2, 3, 5, 7, 8), (1, 1, 1, 1, 33), (2, 2, 20, 70, 64)])
@pytest.mark.parametrize("paired", [False, True])
def test_best_products_and_winners_equal_the_torch_path(dtype, b, c, lq, lp, d, paired):
    if dtype == torch.bfloat16 and HERE == "cpu":
        pytest.skip("Triton's interpreter multiplies the raw bits of bf16")
    generator = torch.Generator().manual_seed(b + lq + d)
    q = torch.randn(b, lq, d, generator=generator).to(HERE, dtype)
    p = torch.randn(*((b, c) if paired else (c,)), lp, d, generator=generator).to(HERE, dtype)
    mask = (torch.rand(p.shape[:-1], generator=generator) > 0.3).to(HERE)
    mask[..., 0] = True
    assert triton_maxsim.available(q, p)
    best, at = triton_maxsim.forward(q, p, mask)
    scores, index = _sliced(q, p, torch.ones(b, lq, dtype=torch.bool, device=HERE), mask, 1 << 20)
    torch.testing.assert_close(best.sum(1), scores, rtol=1e-4, atol=1e-4)
    assert torch.equal(at, index)


@needs_kernel
def test_scores_and_gradients_through_the_public_function(monkeypatch):
    monkeypatch.setenv("VDR_NATIVE", "0")
    q, p = torch.randn(2, 4, 16, device=HERE), torch.randn(3, 6, 16, device=HERE)
    mask = torch.ones(3, 6, dtype=torch.bool, device=HERE)
    mask[1] = False  # a page without a valid vector
    grads = []
    for switch in ("1", "0"):
        monkeypatch.setenv("VDR_TRITON", switch)
        a, b = q.clone().requires_grad_(), p.clone().requires_grad_()
        scores = maxsim(a, b, None, mask, "mean")
        assert (scores[:, 1] == -torch.inf).all()
        scores[:, [0, 2]].square().sum().backward()
        grads.append((scores.detach(), a.grad, b.grad))
    for mine, twin in zip(*grads, strict=True):
        torch.testing.assert_close(mine, twin)
