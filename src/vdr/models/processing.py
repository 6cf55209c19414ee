"""From pages and queries to model inputs, by ColQwen2.5's conventions, without torchvision.

A page is ``<|im_start|>user\\n<|vision_start|><|image_pad|>×N<|vision_end|>Describe the image.<|im_end|><|endoftext|>``; a
query is ``Query: {text}`` followed by augmentation tokens ``<|endoftext|>``, which are valid tokens although they share
the padding token's id. Masks say what is valid. Padding is on the left, as in ColQwen2.5.

``Qwen2_5_VLProcessor`` needs torchvision for its video part; the image processor and the tokenizer do not. Where
torchvision exists, both give the same pixels (tested there).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from vdr.errors import BadInput
from vdr.pixels import page_image

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

    def pixels(
        self, pages: Sequence[Image.Image], names: Sequence[str] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``pixel_values`` and ``grid_thw`` of pages, by ``names`` in errors (default: their place in the batch).

        The image processor's longest edge is a cap on merged tokens for every shape. Raises `BadInput` for a page that
        `vdr.pixels` refuses or that is more than 200 times as long as wide.
        """
        values, grids = [], []
        for i, page in enumerate(pages):
            name = f"page {i} of the batch" if names is None else f"page {names[i]}"
            frame, fits = self._within_the_cap(page_image(page, name), name)
            # Channels are told: the library guesses them from the shape, and reads a page 3 pixels high sideways.
            out = self.image_processor(
                images=[np.asarray(frame)], do_resize=not fits, input_data_format="channels_last", return_tensors="pt"
            )
            values.append(out["pixel_values"])
            grids.append(out["image_grid_thw"])
        return torch.cat(values), torch.cat(grids)

    def _within_the_cap(self, page: Image.Image, name: str) -> tuple[Image.Image, bool]:
        """The page, and whether it is already of the size that the model reads.

        The library's rule rounds sides up to at least one merged token, so that very long pages, and pages whose lower
        bound on pixels is near the upper one, get more tokens than the upper bound says. These are resized here.
        """
        rules = self.image_processor
        unit, least, most = rules.patch_size * rules.merge_size, rules.size["shortest_edge"], rules.size["longest_edge"]
        try:
            height, width = smart_resize(page.height, page.width, unit, least, most)
        except ValueError as error:
            what = f"has {page.width}×{page.height} pixels, more than 200 times as long as wide"
            raise BadInput(what, where=name, todo="cut it into pages") from error
        if height * width <= most:
            return page, False
        shrink = math.sqrt(page.height * page.width / most)
        tall, wide = (max(1, math.floor(side / shrink / unit)) for side in (page.height, page.width))
        limit = most // unit**2
        tall, wide = (min(tall, limit), wide) if wide == 1 else (tall, min(wide, limit))
        return page.resize((wide * unit, tall * unit), rules.resample), True

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
