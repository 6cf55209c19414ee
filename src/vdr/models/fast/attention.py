"""Grouped-query causal attention behind shared prefixes, forwards and backwards, by torch or by the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from vdr.kernels.native import pointer
from vdr.models.fast.pointwise import c_int, kernels
from vdr.models.fast.shapes import Group, Shape

__all__ = ["NativeAttention", "TorchAttention", "attention"]

_BIAS: dict[tuple[int, int, int, torch.device], torch.Tensor] = {}


def _causal_bias(length: int, before: int, groups: int, device: torch.device) -> torch.Tensor:
    """Additive mask `[G·L, before + L]` of causal attention behind `before` shared tokens."""
    key = (length, before, groups, device)
    if key not in _BIAS:
        allowed = torch.ones(length, before + length, dtype=torch.bool, device=device).tril(before)
        bias = torch.zeros(length, before + length, device=device).masked_fill_(~allowed, -torch.inf)
        _BIAS[key] = bias.repeat(groups, 1)
    return _BIAS[key]


class TorchAttention:
    """Grouped-query attention of all groups, forwards and backwards, on rotated q, k and plain v."""

    def __init__(self, groups: Sequence[Group], shape: Shape) -> None:
        self.groups, self.shape = groups, shape
        self.q: list[torch.Tensor] = []
        self.k: list[torch.Tensor] = []
        self.v: list[torch.Tensor] = []
        self.share: list[torch.Tensor] = []

    def forward(self, qk: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """qk `[N, heads + kv, dim]`, v `[N, kv · dim]` → `[N, E]`."""
        heads, kv, dim, _ = self.shape
        v = v.reshape(-1, kv, dim)
        per = heads // kv
        result = qk.new_empty(qk.shape[0], heads * dim)
        for group in self.groups:
            n, length = group.count, group.length
            rows = slice(group.start, group.start + n * length)
            before = 0 if group.prefix is None else self.groups[group.prefix].length
            q = qk[rows, :heads].view(n, length, kv, per, dim).permute(0, 2, 3, 1, 4).reshape(n * kv, per * length, dim)
            k = qk.new_empty(n, kv, before + length, dim)
            w = qk.new_empty(n, kv, before + length, dim)
            if group.prefix is not None:
                k[:, :, :before] = self.k[group.prefix].view(1, kv, before, dim)
                w[:, :, :before] = self.v[group.prefix].view(1, kv, before, dim)
            k[:, :, before:] = qk[rows, heads:].view(n, length, kv, dim).transpose(1, 2)
            w[:, :, before:] = v[rows].view(n, length, kv, dim).transpose(1, 2)
            k, w = k.view(n * kv, -1, dim), w.view(n * kv, -1, dim)
            share = torch.baddbmm(_causal_bias(length, before, per, q.device), q, k.transpose(1, 2), alpha=dim**-0.5)
            share = torch.softmax(share, dim=-1)
            mixed = torch.bmm(share, w).view(n, kv, per, length, dim).permute(0, 3, 1, 2, 4)
            result[rows].view(n, length, kv, per, dim).copy_(mixed)
            self.q.append(q)
            self.k.append(k)
            self.v.append(w)
            self.share.append(share)
        return result

    def backward(self, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """grad `[N, E]` → gradients of qk and v."""
        heads, kv, dim, _ = self.shape
        per = heads // kv
        total = grad.shape[0]
        dqk = grad.new_zeros(total, heads + kv, dim)
        dv = grad.new_zeros(total, kv, dim)
        for index in range(len(self.groups) - 1, -1, -1):  # a prefix comes before the groups that add to its gradient
            group, share = self.groups[index], self.share[index]
            n, length = group.count, group.length
            rows = slice(group.start, group.start + n * length)
            before = 0 if group.prefix is None else self.groups[group.prefix].length
            out = grad[rows].view(n, length, kv, per, dim).permute(0, 2, 3, 1, 4).reshape(n * kv, per * length, dim)
            dw = torch.bmm(share.transpose(1, 2), out).view(n, kv, before + length, dim)
            dshare = torch.bmm(out, self.v[index].transpose(1, 2))
            dlogit = torch._softmax_backward_data(dshare, share, -1, share.dtype).mul_(dim**-0.5)
            dq = torch.bmm(dlogit, self.k[index]).view(n, kv, per, length, dim).permute(0, 3, 1, 2, 4)
            dk = torch.bmm(dlogit.transpose(1, 2), self.q[index]).view(n, kv, before + length, dim)
            dqk[rows, :heads].view(n, length, kv, per, dim).copy_(dq)
            dqk[rows, heads:].view(n, length, kv, dim).add_(dk[:, :, before:].transpose(1, 2))
            dv[rows].view(n, length, kv, dim).add_(dw[:, :, before:].transpose(1, 2))
            if group.prefix is not None:
                first = self.groups[group.prefix]
                shared = slice(first.start, first.start + before)
                dqk[shared, heads:].add_(dk[:, :, :before].sum(0).transpose(0, 1))
                dv[shared].add_(dw[:, :, :before].sum(0).transpose(0, 1))
        return dqk, dv.view(total, -1)


class NativeAttention:
    """The same by the compiled kernels; v and its gradient are read and written in place, rows `stride` apart."""

    def __init__(self, groups: Sequence[Group], shape: Shape, native: Any) -> None:
        self.groups, self.shape, self.native = groups, shape, native
        self.share: list[torch.Tensor] = []

    def _sizes(self, group: Group) -> tuple[Any, ...]:
        shared = self.groups[group.prefix] if group.prefix is not None else None
        numbers = (
            group.start,
            group.count,
            group.length,
            shared.start if shared else 0,
            shared.length if shared else 0,
        )
        return (
            *map(c_int, numbers),
            c_int(self.shape.heads),
            c_int(self.shape.kv),
            c_int(self.shape.dim),
            ctypes.c_float(self.shape.dim**-0.5),
        )

    def forward(self, qk: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """qk `[N, heads + kv, dim]`, v `[N, kv · dim]` (a slice of a wider matrix) → `[N, E]`."""
        self.qk, self.v = qk, v
        result = qk.new_empty(qk.shape[0], self.shape.heads * self.shape.dim)
        for group in self.groups:
            before = self.groups[group.prefix].length if group.prefix is not None else 0
            wide = -(-(before + group.length) // 16) * 16
            share = qk.new_empty(group.count, self.shape.heads, group.length, wide)
            _done(
                self.native.vdr_attention(
                    pointer(qk), pointer(v), c_int(v.stride(0)), pointer(result), pointer(share), *self._sizes(group)
                )
            )
            self.share.append(share)
        return result

    def backward(self, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """grad `[N, E]` → gradients of qk and v."""
        grad = grad.contiguous()
        dqk, dv = torch.zeros_like(self.qk), grad.new_zeros(self.v.shape)
        for index in range(len(self.groups) - 1, -1, -1):
            _done(
                self.native.vdr_attention_backward(
                    pointer(self.qk),
                    pointer(self.v),
                    c_int(self.v.stride(0)),
                    pointer(self.share[index]),
                    pointer(grad),
                    pointer(dqk),
                    pointer(dv),
                    c_int(dv.stride(0)),
                    *self._sizes(self.groups[index]),
                )
            )
        return dqk, dv


def _done(status: int) -> None:
    if status:
        raise MemoryError("the attention kernel had no memory")


def attention(x: torch.Tensor, groups: Sequence[Group], shape: Shape) -> Any:
    """The form that rows `x [N, H]` can use."""
    native = kernels(x, shape)
    return TorchAttention(groups, shape) if native is None else NativeAttention(groups, shape, native)
