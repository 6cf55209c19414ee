"""RMSNorm without its gain, and SwiGLU, forwards and backwards: by the compiled kernels where they can be used, else by torch."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from vdr.kernels.native import library, pointer
from vdr.models.fast.shapes import Shape

__all__ = ["c_int", "kernels", "norm", "norm_backward", "swiglu", "swiglu_backward"]


def c_int(number: int) -> ctypes.c_int64:
    """A size as the compiled kernels take it."""
    return ctypes.c_int64(number)


def kernels(x: torch.Tensor, shape: Shape | None = None) -> Any:
    """The compiled kernels where they can be used: fp32 on the CPU, a head width they do; else None."""
    if x.device.type != "cpu" or (shape is not None and shape.dim not in (8, 16, 24, 32, 64)):
        return None
    return library()


def norm(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`x · scale` and scale `[N, 1]`, scale = 1 / √(mean x² + eps)."""
    native = kernels(x)
    if native is None:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        return x * scale, scale
    x = x.contiguous()
    y, scale = torch.empty_like(x), x.new_empty(x.shape[0], 1)
    native.vdr_norm(pointer(x), pointer(y), pointer(scale), c_int(x.shape[0]), c_int(x.shape[1]), ctypes.c_float(eps))
    return y, scale


def norm_backward(
    grad: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, add: torch.Tensor | None = None
) -> torch.Tensor:
    """Gradient of `y = x · scale(x)` plus `add`, written over `grad`, which must be contiguous."""
    native = kernels(grad)
    if native is None:
        along = (grad * y).mean(dim=-1, keepdim=True)
        grad.addcmul_(y, along, value=-1).mul_(scale)
        return grad if add is None else grad.add_(add)
    n, width = grad.shape
    native.vdr_norm_backward(
        pointer(grad), pointer(y), pointer(scale), pointer(add), pointer(grad), c_int(n), c_int(width)
    )
    return grad


def swiglu(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """SiLU(gate) · value and σ(gate), `[N, I]` each, of `both = [gate | value]`."""
    half = both.shape[1] // 2
    native = kernels(both) if half % 8 == 0 else None
    if native is None:
        gate, value = both.chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        return (gate * sigmoid).mul_(value), sigmoid
    inner, sigmoid = both.new_empty(both.shape[0], half), both.new_empty(both.shape[0], half)
    native.vdr_swiglu(pointer(both), pointer(sigmoid), pointer(inner), c_int(both.shape[0]), c_int(half))
    return inner, sigmoid


def swiglu_backward(both: torch.Tensor, sigmoid: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of `both [N, 2I]` from that of `inner [N, I]`."""
    half = both.shape[1] // 2
    result = torch.empty_like(both)
    native = kernels(both) if half % 8 == 0 else None
    if native is None:
        gate, value = both.chunk(2, dim=-1)
        swish = gate * sigmoid
        torch.mul(grad, swish, out=result[:, half:])
        # d swish / d gate = σ + swish · (1 − σ)
        slope = torch.addcmul(sigmoid, swish, sigmoid, value=-1).add_(swish)
        torch.mul(grad * value, slope, out=result[:, :half])
        return result
    native.vdr_swiglu_backward(
        pointer(both), pointer(sigmoid), pointer(grad), pointer(result), c_int(both.shape[0]), c_int(half)
    )
    return result
