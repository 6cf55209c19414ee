"""The lean language tower over a transformers model whose own weights are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.models.fast import Group, Layer, lean_forward, merge_layer, rotary_angles, text_shape
from vdr.models.pretraining.pages import MERGED_COLUMNS, MERGED_LINES

__all__ = ["LeanTower", "page_positions"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def page_positions(ids: Sequence[int], image_token: int) -> torch.Tensor:
    """Multimodal rotary positions ``[3, L]`` of a sequence with one page: text counts on, the page spans its grid."""
    at = list(ids).index(image_token)
    count = MERGED_LINES * MERGED_COLUMNS
    rows = torch.arange(MERGED_LINES).repeat_interleave(MERGED_COLUMNS)
    columns = torch.arange(MERGED_COLUMNS).repeat(MERGED_LINES)
    image = at + torch.stack([torch.zeros(count, dtype=torch.long), rows, columns])
    after = at + max(MERGED_LINES, MERGED_COLUMNS)
    tail = torch.arange(len(ids) - at - count)
    return torch.cat([torch.arange(at).expand(3, -1), image, (after + tail).expand(3, -1)], dim=1)


class LeanTower:
    """Forward passes of a model's language tower by `vdr.models.fast`, with gradients for its own weights."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration):
        self.text = model.model.language_model
        self.shape = text_shape(self.text.config)

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained: every weight of the layers and the last norm, except the attention biases (kept at zero)."""
        named = [*self.text.layers.named_parameters(), *self.text.norm.named_parameters()]
        return [p for name, p in named if not name.endswith("bias")]

    def layers(self) -> list[Layer]:
        """The layers' weights as they are now, fused; gradients flow to the model's parameters."""
        return [self._layer(layer) for layer in self.text.layers]

    def _layer(self, layer: Any) -> Layer:
        attention = layer.self_attn
        weights = {name: getattr(attention, name).weight for name in PROJECTIONS}
        weights |= {name: getattr(layer.mlp, name).weight for name in ("gate_proj", "up_proj", "down_proj")}
        biases = {name: getattr(attention, name).bias for name in PROJECTIONS[:3]}
        gains = (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
        return merge_layer(weights, biases, gains, self.shape)

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """Rotary angles of positions ``[3, N]``."""
        return rotary_angles(self.text.rotary_emb, positions)

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, groups: Sequence[Group], upto: int | None = None
    ) -> torch.Tensor:
        """Hidden states ``[N, H]`` after the last norm (``upto`` layers and the norm, if given)."""
        return lean_forward(x, self.layers()[:upto], self.text.norm.weight, self.angles(positions), groups, self.shape)
