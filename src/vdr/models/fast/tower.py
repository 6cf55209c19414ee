"""The decoder layers and the last norm, forwards, and backwards as written out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vdr.models.fast.attention import attention
from vdr.models.fast.pointwise import norm, norm_backward, swiglu, swiglu_backward
from vdr.models.fast.shapes import Group, Layer, Shape

__all__ = ["lean_forward"]


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate `x [N, heads, dim]` (pairs adjacent) by `angles [N, 1, dim/2]`."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2)


class _DecoderLayer(torch.autograd.Function):
    """One decoder layer on `x [N, H]`; gradients for x and the four weights, none for bias and angles."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        qkv: torch.Tensor,
        bias: torch.Tensor,
        out: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        angles: torch.Tensor,
        groups: Sequence[Group],
        shape: Shape,
    ) -> torch.Tensor:
        heads, kv, dim, eps = shape
        rotated = (heads + kv) * dim
        y1, scale1 = norm(x, eps)
        mixed = torch.addmm(bias, y1, qkv.t())
        qk = _rotate(mixed[:, :rotated].reshape(-1, heads + kv, dim), angles)
        attended = attention(x, groups, shape)
        seen = attended.forward(qk, mixed[:, rotated:])
        middle = torch.addmm(x, seen, out.t())
        y2, scale2 = norm(middle, eps)
        both = y2 @ up.t()
        inner, sigmoid = swiglu(both)
        result = torch.addmm(middle, inner, down.t())
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(y1, scale1, seen, y2, scale2, both, sigmoid, inner, qkv, out, up, down, angles)
            ctx.attention, ctx.shape = attended, shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y1, scale1, seen, y2, scale2, both, sigmoid, inner, qkv, out, up, down, angles = ctx.saved_tensors
        heads, kv, dim, _ = ctx.shape
        rotated = (heads + kv) * dim
        grad = grad.contiguous()
        d_down = grad.t() @ inner
        d_mlp = swiglu_backward(both, sigmoid, grad @ down)
        d_up = d_mlp.t() @ y2
        d_middle = norm_backward(d_mlp @ up, y2, scale2, grad)
        d_out = d_middle.t() @ seen
        dqk, dv = ctx.attention.backward(d_middle @ out)
        d_mixed = grad.new_empty(grad.shape[0], rotated + kv * dim)
        d_mixed[:, :rotated] = _rotate(dqk, angles.conj()).view(-1, rotated)
        d_mixed[:, rotated:] = dv
        d_qkv = d_mixed.t() @ y1
        dx = norm_backward(d_mixed @ qkv, y1, scale1, d_middle) if ctx.needs_input_grad[0] else None
        ctx.attention = None
        return dx, d_qkv, None, d_out, d_up, d_down, None, None, None


def lean_forward(
    x: torch.Tensor,
    layers: Sequence[Layer],
    final_gain: torch.Tensor,
    angles: torch.Tensor,
    groups: Sequence[Group],
    shape: Shape,
) -> torch.Tensor:
    """Hidden states after the last norm, `[N, H]`, fp32.

    x `[N, H]` input embeddings, `angles [N, 1, dim/2]` from `rotary_angles`, `groups` cover the N rows without
    overlap, a prefix before the groups that use it. Gradients flow to the layers' weights (and to x where asked).
    Double backward is not offered.
    """
    for layer in layers:
        x = _DecoderLayer.apply(x, layer.qkv, layer.bias, layer.out, layer.up, layer.down, angles, groups, shape)
    return _FinalNorm.apply(x, shape.eps) * final_gain


class _FinalNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float) -> torch.Tensor:
        y, scale = norm(x, eps)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        y, scale = ctx.saved_tensors
        return norm_backward(grad.contiguous().clone(), y, scale), None
