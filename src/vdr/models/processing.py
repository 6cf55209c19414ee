"""From pages and queries to model inputs, by ColQwen2.5's conventions, without torchvision.

A page is ``<|im_start|>user\\n<|vision_start|><|image_pad|>×N<|vision_end|>Describe the image.<|im_end|><|endoftext|>``; a
query is ``Query: {text}`` followed by augmentation tokens ``<|endoftext|>``, which are valid tokens although they share
the padding token's id. Masks say what is valid. Padding is on the left, as in ColQwen2.5.

``Qwen2_5_VLProcessor`` needs torchvision for its video part; the image processor and the tokenizer do not. Where
torchvision exists, both give the same pixels (tested there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2VLImageProcessorPil

from vdr.errors import BadInput

__all__ = ["PAGE_PROMPT", "QUERY_PREFIX", "PageBatch", "Processor", "QueryBatch"]

PAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
QUERY_PREFIX = "Query: "
AUGMENTATION_TOKEN = "<|endoftext|>"


@dataclass
class PageBatch:
    """Model inputs of n pages.

    ``pixel_values`` float32 ``[sum of patches, 3·2·patch²]``; ``grid_thw`` int64 ``[n, 3]`` in patches; ``input_ids`` and
    ``attention_mask`` int64 ``[n, Lp]``; ``is_image`` bool ``[n, Lp]``.
    """

    pixel_values: torch.Tensor
    grid_thw: torch.Tensor
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    is_image: torch.Tensor


@dataclass
class QueryBatch:
    """Model inputs of n queries: ``input_ids`` and ``attention_mask`` int64 ``[n, Lq]``, padded on the left."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor


class Processor:
    """Image processor and tokenizer of a Qwen2.5-VL checkpoint directory."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        image_processor: Qwen2VLImageProcessorPil,
        augmentation_tokens: int = 10,
    ):
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.augmentation_tokens = augmentation_tokens
        self.image_token_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.pad_token_id = tokenizer.convert_tokens_to_ids(AUGMENTATION_TOKEN)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        max_visual_tokens: int | None = None,
        augmentation_tokens: int = 10,
        revision: str | None = None,
    ) -> Processor:
        """Load from a checkpoint directory (or hub id). ``max_visual_tokens`` caps merged tokens a page (WT: ≈ 768)."""
        tokenizer = AutoTokenizer.from_pretrained(folder, revision=revision)
        images = Qwen2VLImageProcessorPil.from_pretrained(folder, revision=revision)
        if max_visual_tokens is not None:
            unit = (images.patch_size * images.merge_size) ** 2
            images.size = {
                "shortest_edge": min(images.size["shortest_edge"], max_visual_tokens * unit),
                "longest_edge": max_visual_tokens * unit,
            }
        return cls(tokenizer, images, augmentation_tokens)

    def merged_grid(self, grid_thw: torch.Tensor) -> torch.Tensor:
        """Height and width in merged tokens, int64 ``[n, 2]``."""
        return grid_thw[:, 1:] // self.image_processor.merge_size

    def pixels(self, pages: Sequence[Image.Image]) -> tuple[torch.Tensor, torch.Tensor]:
        """``pixel_values`` and ``grid_thw`` of pages. Raises `BadInput` for a page that cannot be decoded or is too thin."""
        frames = []
        for i, page in enumerate(pages):
            try:
                frames.append(np.asarray(page.convert("RGB")))
            except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for truncated or damaged data
                raise BadInput(f"page {i} of the batch cannot be decoded: {error}", where="image") from error
        try:
            out = self.image_processor(images=frames, return_tensors="pt")
        except ValueError as error:
            raise BadInput(f"a page's shape does not suit the image processor: {error}", where="image") from error
        return out["pixel_values"], out["image_grid_thw"]

    def page_ids(self, grid_thw: torch.Tensor, prompt: str = PAGE_PROMPT) -> tuple[torch.Tensor, torch.Tensor]:
        """Input ids and mask ``[n, Lp]`` of pages with these grids, the image token repeated once a merged token."""
        template = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if template.count(self.image_token_id) != 1:
            raise BadInput("a page prompt names the image exactly once", where="prompt")
        at = template.index(self.image_token_id)
        counts = self.merged_grid(grid_thw).prod(dim=1).tolist()
        return self._pad([template[:at] + [self.image_token_id] * n + template[at + 1 :] for n in counts])

    def pages(self, pages: Sequence[Image.Image]) -> PageBatch:
        """Everything the page encoder needs."""
        pixel_values, grid_thw = self.pixels(pages)
        input_ids, mask = self.page_ids(grid_thw)
        return PageBatch(pixel_values, grid_thw, input_ids, mask, input_ids == self.image_token_id)

    def query_ids(self, query: str) -> list[int]:
        """Token ids of one query, augmentation tokens included. Special tokens written in a query's text stay text."""
        if not query or not query.strip():
            raise BadInput("a query is empty", where="query")
        text = QUERY_PREFIX + query
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids + [self.pad_token_id] * self.augmentation_tokens

    def queries(self, queries: Sequence[str]) -> QueryBatch:
        """Everything the query encoder needs."""
        return QueryBatch(*self._pad([self.query_ids(query) for query in queries]))

    def _pad(self, sequences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, sequences))
        ids = torch.full((len(sequences), longest), self.pad_token_id, dtype=torch.long)
        mask = torch.zeros((len(sequences), longest), dtype=torch.long)
        for i, sequence in enumerate(sequences):
            ids[i, longest - len(sequence) :] = torch.tensor(sequence)
            mask[i, longest - len(sequence) :] = 1
        return ids, mask
