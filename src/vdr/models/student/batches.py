"""Token batches for the language tower: right-padded ids, masks and multimodal positions of pages and of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vdr.errors import BadInput

__all__ = ["PagePositions", "TokenBatch", "page_batch", "query_batch"]


@dataclass
class TokenBatch:
    """B right-padded sequences for the language tower.

    ids `[B, L]` int64; mask `[B, L]` bool, true at tokens that yield a vector; positions `[1 | B, 3, L]` (one row:
    all sequences share it); features `[image tokens of all, H]` for the true places of is_image `[B, L]`, or None
    for queries; prefix: how many first tokens all sequences share (0: none known).
    """

    ids: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    is_image: torch.Tensor | None = None
    features: torch.Tensor | None = None
    prefix: int = 0

    @property
    def lengths(self) -> list[int]:
        return self.mask.sum(1).tolist()


class PagePositions:
    """Multimodal positions of a backbone's pages, each kind of page worked out once."""

    def __init__(self, backbone: Any) -> None:
        self.image_token = backbone.config.image_token_id
        self.merge = backbone.config.vision_config.spatial_merge_size
        self._rule = backbone.model.get_rope_index
        self._found: dict[tuple[int, int, int, int], torch.Tensor] = {}

    def __call__(self, start: int, h: int, w: int, length: int) -> torch.Tensor:
        """Multimodal positions `[3, length]` of a page whose image begins at token `start`, by the library's own
        rule.
        """
        key = (start, h, w, length)
        if key not in self._found:
            kinds = torch.zeros(1, length, dtype=torch.int32)
            kinds[0, start : start + h * w] = 1
            grid = torch.tensor([[1, h * self.merge, w * self.merge]])
            found, _ = self._rule(
                torch.zeros(1, length, dtype=torch.long), mm_token_type_ids=kinds, image_grid_thw=grid
            )
            self._found[key] = found[:, 0]
        return self._found[key]


def page_batch(
    ids: Sequence[Sequence[int]],
    grids: Sequence[tuple[int, int]],
    features: Sequence[torch.Tensor],
    positions_of: PagePositions,
) -> TokenBatch:
    """Pages: token ids of each (its prompt with the image token repeated), merged grid (rows, columns), vision
    features.

    Raises BadInput when image tokens and features do not match in number.
    """
    tokens, mask = _pad(ids)
    is_image = (tokens == positions_of.image_token) & mask
    counts = is_image.sum(1).tolist()
    for row, (h, w) in enumerate(grids):
        if counts[row] != h * w or len(features[row]) != h * w:
            raise BadInput(
                f"page {row}: {counts[row]} image tokens, grid {h}×{w}, {len(features[row])} features",
                where="page",
            )
    starts = is_image.int().argmax(1).tolist()
    keys = [(start, h, w, tokens.shape[1]) for start, (h, w) in zip(starts, grids, strict=True)]
    if len(set(keys)) == 1:
        keys = keys[:1]
    positions = torch.stack([positions_of(*key) for key in keys])
    first = min(starts)
    prefix = first if len(ids) > 1 and bool((tokens[:, :first] == tokens[:1, :first]).all()) else 0
    return TokenBatch(tokens, mask, positions, is_image, torch.cat(list(features)), prefix)


def query_batch(ids: Sequence[Sequence[int]]) -> TokenBatch:
    """Queries (or descriptions, which go through the same tower): token ids of each."""
    tokens, mask = _pad(ids)
    positions = torch.arange(tokens.shape[1]).expand(1, 3, -1)
    prefix = 0
    if len(ids) > 1:
        shortest = min(len(row) for row in ids)
        same = (tokens[:, :shortest] == tokens[:1, :shortest]).all(0).tolist()
        prefix = min(same.index(False) if False in same else shortest, shortest - 1)
    return TokenBatch(tokens, mask, positions, prefix=prefix)


def _pad(ids: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad with token 0 (never looked at: the mask is what counts) → ids and mask `[B, L]`."""
    if not ids or not all(len(row) for row in ids):
        raise BadInput("an empty sequence cannot be encoded", where="tokens")
    length = max(len(row) for row in ids)
    tokens = torch.zeros(len(ids), length, dtype=torch.long)
    mask = torch.zeros(len(ids), length, dtype=torch.bool)
    for row, sequence in enumerate(ids):
        tokens[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = True
    return tokens, mask
