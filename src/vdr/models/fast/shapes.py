"""What the lean pass is given: the tower's shape, its layers' effective weights, and how the step's rows are grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = ["Group", "Layer", "Shape", "merge_layer", "rotary_angles", "text_shape"]


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
