"""A lean forward and backward pass of Qwen2.5-VL's language tower for frozen weights plus adapters.

Same weights, same mathematics as transformers' `Qwen2_5_VLTextModel` (a test holds the two to 1e-5 in values and
gradients); what differs is the work: the tokens of all sequences of a step lie back to back in one matrix `x [N,
H]`, so that every linear layer is one product without padding waste; the rotary embedding is one complex product
(the rows of the query and key weights are permuted so that each rotated pair is adjacent); the RMSNorm gains are
folded into the weights that follow; tokens that all sequences of a group share (a page's prompt before its image)
are computed once; and the backward pass is written out, so that nothing is computed for frozen weights beyond what
the adapters need.

What surrounds the products (norms, SwiGLU, attention) is done by small compiled kernels (`kernels/csrc/decoder.c`) where there is a
C compiler, otherwise by torch: the same within rounding, slower.

Legend: N tokens of a step, H width, E = heads × head width, G = query heads per key head, B sequences of a group, L
their length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from vdr.kernels.native import library, pointer

__all__ = ["Group", "Layer", "Shape", "lean_forward", "merge_layer", "rotary_angles", "text_shape"]


class Shape(NamedTuple):
    """What the arithmetic needs to know of the tower: `heads`, `kv` key heads, `dim` of a head, `eps` of the norms."""

    heads: int
    kv: int
    dim: int
    eps: float


class Layer(NamedTuple):
    """One decoder layer's effective weights: `qkv [E + 2·kv·dim, H]` with `bias`, `out [H, E]`, `up [2I, H]`, `down
    [H, I]`.

    `qkv` and `up` carry the norms' gains; the rows of its queries and keys are in rotary order (see `merge_layer`).
    """

    qkv: torch.Tensor
    bias: torch.Tensor
    out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Group:
    """B right-padded sequences of one length L that start at row `start` of `x`; causal attention within each.

    `prefix` is the index of an earlier group of one sequence whose tokens all sequences of this one are preceded by
    (None: nothing is shared). Right padding needs no mask: under causal attention no valid token sees it.
    """

    start: int
    count: int
    length: int
    prefix: int | None = None


def text_shape(text_config: Any) -> Shape:
    """The `Shape` of a `Qwen2_5_VLTextConfig`."""
    heads = text_config.num_attention_heads
    return Shape(heads, text_config.num_key_value_heads, text_config.hidden_size // heads, text_config.rms_norm_eps)


def rotary_angles(rotary: Any, positions: torch.Tensor) -> torch.Tensor:
    """Unit complex numbers `[n, 1, dim/2]` of the tower's own multimodal rotary embedding for `positions [3, n]`."""
    reference = torch.zeros(1, dtype=torch.float32, device=positions.device)
    cos, sin = rotary(reference, positions[:, None, :])
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())[:, None, :].contiguous()


def _pairs_adjacent(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """Reorder rows `[heads · dim, …]` so that each rotated pair (i, i + dim/2) of every head stands side by side."""
    return rows.view(-1, 2, dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def merge_layer(
    weights: dict[str, torch.Tensor],
    biases: dict[str, torch.Tensor],
    gains: tuple[torch.Tensor, torch.Tensor],
    shape: Shape,
) -> Layer:
    """Fuse one layer's effective weights (base, or W + BA) into a `Layer`; differentiable in `weights`.

    `weights` has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; `biases` the first three; `gains` are
    the input and the post-attention norm's.
    """
    qk = _pairs_adjacent(torch.cat([weights["q_proj"], weights["k_proj"]]), shape.dim)
    qk_bias = _pairs_adjacent(torch.cat([biases["q_proj"], biases["k_proj"]]), shape.dim)
    bias = torch.cat([qk_bias, biases["v_proj"]]).detach()
    qkv = torch.cat([qk, weights["v_proj"]]) * gains[0]
    up = torch.cat([weights["gate_proj"], weights["up_proj"]]) * gains[1]
    return Layer(qkv, bias, weights["o_proj"], up, weights["down_proj"])


def _kernels(x: torch.Tensor, shape: Shape | None = None) -> Any:
    """The compiled kernels where they can be used: fp32 on the CPU, a head width they do; else None."""
    if x.device.type != "cpu" or (shape is not None and shape.dim not in (8, 16, 24, 32, 64)):
        return None
    return library()


def _norm(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`x · scale` and scale `[N, 1]`, scale = 1 / √(mean x² + eps)."""
    native = _kernels(x)
    if native is None:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        return x * scale, scale
    x = x.contiguous()
    y, scale = torch.empty_like(x), x.new_empty(x.shape[0], 1)
    native.vdr_norm(pointer(x), pointer(y), pointer(scale), _int(x.shape[0]), _int(x.shape[1]), ctypes.c_float(eps))
    return y, scale


def _norm_backward(
    grad: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, add: torch.Tensor | None = None
) -> torch.Tensor:
    """Gradient of `y = x · scale(x)` plus `add`, written over `grad`, which must be contiguous."""
    native = _kernels(grad)
    if native is None:
        along = (grad * y).mean(dim=-1, keepdim=True)
        grad.addcmul_(y, along, value=-1).mul_(scale)
        return grad if add is None else grad.add_(add)
    n, width = grad.shape
    native.vdr_norm_backward(
        pointer(grad), pointer(y), pointer(scale), pointer(add), pointer(grad), _int(n), _int(width)
    )
    return grad


def _swiglu(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """SiLU(gate) · value and σ(gate), `[N, I]` each, of `both = [gate | value]`."""
    half = both.shape[1] // 2
    native = _kernels(both) if half % 8 == 0 else None
    if native is None:
        gate, value = both.chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        return (gate * sigmoid).mul_(value), sigmoid
    inner, sigmoid = both.new_empty(both.shape[0], half), both.new_empty(both.shape[0], half)
    native.vdr_swiglu(pointer(both), pointer(sigmoid), pointer(inner), _int(both.shape[0]), _int(half))
    return inner, sigmoid


def _swiglu_backward(both: torch.Tensor, sigmoid: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of `both [N, 2I]` from that of `inner [N, I]`."""
    half = both.shape[1] // 2
    result = torch.empty_like(both)
    native = _kernels(both) if half % 8 == 0 else None
    if native is None:
        gate, value = both.chunk(2, dim=-1)
        swish = gate * sigmoid
        torch.mul(grad, swish, out=result[:, half:])
        # d swish / d gate = σ + swish · (1 − σ)
        slope = torch.addcmul(sigmoid, swish, sigmoid, value=-1).add_(swish)
        torch.mul(grad * value, slope, out=result[:, :half])
        return result
    native.vdr_swiglu_backward(
        pointer(both), pointer(sigmoid), pointer(grad), pointer(result), _int(both.shape[0]), _int(half)
    )
    return result


_BIAS: dict[tuple[int, int, int, torch.device], torch.Tensor] = {}


def _causal_bias(length: int, before: int, groups: int, device: torch.device) -> torch.Tensor:
    """Additive mask `[G·L, before + L]` of causal attention behind `before` shared tokens."""
    key = (length, before, groups, device)
    if key not in _BIAS:
        allowed = torch.ones(length, before + length, dtype=torch.bool, device=device).tril(before)
        bias = torch.zeros(length, before + length, device=device).masked_fill_(~allowed, -torch.inf)
        _BIAS[key] = bias.repeat(groups, 1)
    return _BIAS[key]


class _TorchAttention:
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


class _NativeAttention:
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
            *map(_int, numbers),
            _int(self.shape.heads),
            _int(self.shape.kv),
            _int(self.shape.dim),
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
                    pointer(qk), pointer(v), _int(v.stride(0)), pointer(result), pointer(share), *self._sizes(group)
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
                    _int(self.v.stride(0)),
                    pointer(self.share[index]),
                    pointer(grad),
                    pointer(dqk),
                    pointer(dv),
                    _int(dv.stride(0)),
                    *self._sizes(self.groups[index]),
                )
            )
        return dqk, dv


def _int(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)


def _done(status: int) -> None:
    if status:
        raise MemoryError("the attention kernel had no memory")


def _attention(x: torch.Tensor, groups: Sequence[Group], shape: Shape) -> Any:
    native = _kernels(x, shape)
    return _TorchAttention(groups, shape) if native is None else _NativeAttention(groups, shape, native)


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
        y1, scale1 = _norm(x, eps)
        mixed = torch.addmm(bias, y1, qkv.t())
        qk = _rotate(mixed[:, :rotated].reshape(-1, heads + kv, dim), angles)
        attention = _attention(x, groups, shape)
        seen = attention.forward(qk, mixed[:, rotated:])
        middle = torch.addmm(x, seen, out.t())
        y2, scale2 = _norm(middle, eps)
        both = y2 @ up.t()
        inner, sigmoid = _swiglu(both)
        result = torch.addmm(middle, inner, down.t())
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(y1, scale1, seen, y2, scale2, both, sigmoid, inner, qkv, out, up, down, angles)
            ctx.attention, ctx.shape = attention, shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        y1, scale1, seen, y2, scale2, both, sigmoid, inner, qkv, out, up, down, angles = ctx.saved_tensors
        heads, kv, dim, _ = ctx.shape
        rotated = (heads + kv) * dim
        grad = grad.contiguous()
        d_down = grad.t() @ inner
        d_mlp = _swiglu_backward(both, sigmoid, grad @ down)
        d_up = d_mlp.t() @ y2
        d_middle = _norm_backward(d_mlp @ up, y2, scale2, grad)
        d_out = d_middle.t() @ seen
        dqk, dv = ctx.attention.backward(d_middle @ out)
        d_mixed = grad.new_empty(grad.shape[0], rotated + kv * dim)
        d_mixed[:, :rotated] = _rotate(dqk, angles.conj()).view(-1, rotated)
        d_mixed[:, rotated:] = dv
        d_qkv = d_mixed.t() @ y1
        dx = _norm_backward(d_mixed @ qkv, y1, scale1, d_middle) if ctx.needs_input_grad[0] else None
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
        y, scale = _norm(x, eps)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        y, scale = ctx.saved_tensors
        return _norm_backward(grad.contiguous().clone(), y, scale), None
