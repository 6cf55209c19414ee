"""MaxSim's forward pass on a GPU with Triton: best product and winner per query vector, no product written to memory.

Optional: :func:`forward` is used by :func:`vdr.kernels.maxsim.maxsim` for CUDA tensors when Triton is installed, and can be
switched off with ``VDR_TRITON=0``. Its twin is the torch path of the same function, which the tests compare it with on a
GPU, or in Triton's interpreter (``TRITON_INTERPRET=1``) on a machine without one. The backward pass needs only the winners
and is the torch path's. Products of fp16 and bf16 inputs are accumulated in fp32; fp32 inputs are multiplied as IEEE fp32, not TF32.
"""

from __future__ import annotations

import importlib.util
import os

import torch

__all__ = ["available", "forward"]

BLOCK_Q, BLOCK_P, BLOCK_D = 16, 64, 32


def available(*tensors: torch.Tensor) -> bool:
    """Whether the Triton path takes these tensors."""
    if os.environ.get("VDR_TRITON", "1") == "0" or importlib.util.find_spec("triton") is None:
        return False
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return all(x.is_cuda or interpreted for x in tensors)


def forward(q: torch.Tensor, p: torch.Tensor, p_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Best products fp32 and winners int32, both [B, Lq, C]; q [B, Lq, D], p [C, Lp, D] or [B, C, Lp, D], masks bool.

    A page without a valid vector gives -inf and winner 0. Among equal products the first page vector wins.
    """
    from vdr.kernels._triton_source import best_products  # on use: importing this module does not need Triton

    (b, lq, d), c, lp = q.shape, p.shape[-3], p.shape[-2]
    if q.dtype != p.dtype:
        q, p = q.float(), p.float()
    q, p = q.contiguous(), p.contiguous()
    best = torch.empty((b, lq, c), dtype=torch.float32, device=q.device)
    at = torch.empty((b, lq, c), dtype=torch.int32, device=q.device)
    mask = p if p_mask is None else p_mask.contiguous().view(torch.uint8)
    grid = (b * c, -(-lq // BLOCK_Q))
    best_products[grid](q, p, mask, best, at, lq, lp, d, c, PAIRED=p.dim() == 4, MASKED=p_mask is not None, BQ=BLOCK_Q, BP=BLOCK_P,
                    BD=BLOCK_D)
    return best, at
