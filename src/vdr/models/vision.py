"""The vision tower over a batch of equal pages at once.

The library packs pages into one sequence and attends page by page, which on a CPU is a Python loop. Equal pages need no
packing: this computes the same tower as a batch ``[n, patches, width]`` and equals the library's forward to rounding
(tested). Pages of differing sizes, and towers with windowed layers, go through the library's own forward.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from transformers import Qwen2VLImageProcessorPil
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    apply_rotary_pos_emb_vision,
)
from transformers.vision_utils import get_vision_position_ids

__all__ = ["patchify", "vision_features", "vision_forward", "vision_positions", "vision_tower"]


def patchify(pixels: torch.Tensor, images: Qwen2VLImageProcessorPil) -> torch.Tensor:
    """Patches of equal pages that need no resizing: uint8 ``[n, H, W, 3]`` → float32 ``[n, patches, 3·t·p·p]``.

    Equals the image processor's output for pages whose sides are multiples of patch × merge within its bounds (tested).
    """
    n, height, width, _ = pixels.shape
    p, m, t = images.patch_size, images.merge_size, images.temporal_patch_size
    x = pixels.permute(0, 3, 1, 2).float() * images.rescale_factor
    mean = torch.tensor(images.image_mean).view(1, 3, 1, 1)
    std = torch.tensor(images.image_std).view(1, 3, 1, 1)
    x = (x - mean) / std
    h, w = height // p, width // p
    x = x.view(n, 3, h // m, m, p, w // m, m, p).permute(0, 2, 5, 3, 6, 1, 4, 7)
    x = x.reshape(n, h * w, 3, 1, p, p).expand(n, h * w, 3, t, p, p)
    return x.reshape(n, h * w, -1)


def vision_forward(
    visual: Qwen2_5_VisionTransformerPretrainedModel, patches: torch.Tensor, grid: tuple[int, int]
) -> torch.Tensor:
    """Merged features of equal pages, ``[n, patches, 3·t·p·p]`` → ``[n, merged tokens, D]`` in raster order.

    ``grid`` is (height, width) in patches. Every layer must attend fully (``fullatt_block_indexes``), else `ValueError`.
    """
    if set(visual.fullatt_block_indexes) != set(range(len(visual.blocks))):
        raise ValueError("vision_forward needs full attention in every layer; use the library's forward")
    cos, sin = vision_positions(visual, grid)
    return vision_tower(visual, patches, cos, sin)


def vision_positions(
    visual: Qwen2_5_VisionTransformerPretrainedModel, grid: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary cosines and sines of one page, each ``[patches, head width]``; ``grid`` is (height, width) in patches."""
    thw = torch.tensor([[1, *grid]])
    return visual.rotary_pos_emb(
        visual.patch_embed.proj.weight, get_vision_position_ids(thw, visual.spatial_merge_size)
    )


def vision_tower(
    visual: Qwen2_5_VisionTransformerPretrainedModel, patches: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """The tower itself, given positions: no step depends on data, so it compiles to one graph."""
    n, count, _ = patches.shape
    weight = visual.patch_embed.proj.weight
    hidden = F.linear(patches.to(weight.dtype), weight.flatten(1))
    for block in visual.blocks:
        attention = block.attn
        q, k, v = attention.qkv(block.norm1(hidden)).view(n, count, 3, attention.num_heads, -1).unbind(2)
        q, k = apply_rotary_pos_emb_vision(q, k, cos, sin)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        hidden = hidden + attention.proj(mixed.transpose(1, 2).reshape(n, count, -1))
        hidden = hidden + block.mlp(block.norm2(hidden))
    return visual.merger(hidden).view(n, -1, visual.config.out_hidden_size)


@torch.no_grad()
def vision_features(
    visual: Qwen2_5_VisionTransformerPretrainedModel,
    pixels: torch.Tensor,
    images: Qwen2VLImageProcessorPil,
    batch: int = 64,
) -> torch.Tensor:
    """Frozen features of many equal pages, uint8 ``[n, H, W, 3]`` → ``[n, merged tokens, D]``, in fixed batches."""
    grid = (pixels.shape[1] // images.patch_size, pixels.shape[2] // images.patch_size)
    return torch.cat([vision_forward(visual, patchify(part, images), grid) for part in pixels.split(batch)])
