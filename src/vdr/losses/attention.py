"""Attention grounding (A): the student's mean per-patch similarity against the teacher's attention map (WT §3)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

__all__ = ["attention_loss", "patch_similarity"]


def patch_similarity(q: torch.Tensor, q_mask: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
    """r `[B, P]`: mean over a query's valid vectors of their products with each image vector of its labelled page.

    q `[B, Lq, D]`, q_mask `[B, Lq]`, patches `[B, P, D]` (the page's image vectors alone, in raster order).
    """
    weight = q_mask.float()
    mean = (q.float() * weight[..., None]).sum(1) / weight.sum(1, keepdim=True).clamp_min(1)
    return torch.einsum("bd,bpd->bp", mean, patches.float())


def attention_loss(
    similarity: torch.Tensor, maps: torch.Tensor, present: torch.Tensor, patch_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean of 1 − cos(r, map) over the rows that have a map; 0 when none has; a scalar in fp32.

    similarity and maps `[B, P]` on the student's merged grid, present `[B]` bool, patch_mask `[B, P]` (None: all
    valid). A map that is zero everywhere has cosine 0.
    """
    r, a = similarity.float(), maps.float()
    if patch_mask is not None:
        r, a = r * patch_mask, a * patch_mask
    loss = 1 - F.cosine_similarity(r, a, dim=-1, eps=1e-8)
    weight = present.float()
    return (loss * weight).sum() / weight.sum().clamp_min(1)
