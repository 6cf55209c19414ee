"""The teacher in this process, through transformers: rating, yes/no, descriptions, attention.

Pages stand before queries in every prompt, so a page's prefix is computed once and its key-value cache is expanded to the
batch of its queries (WT App. B: ordering the queue by page). Decoding is greedy. The same code runs a mini checkpoint on
a CPU and Qwen2.5-VL-72B on GPUs; servers that speak OpenAI's protocol answer the same `RatingEngine` protocol elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from transformers import DynamicCache, Qwen2_5_VLForConditionalGeneration

from vdr.corpus.access import load_train
from vdr.errors import BadInput
from vdr.models.processing import Processor
from vdr.models.prompts import RATE_PROMPT, YES_NO_PROMPT, chat
from vdr.study.sections.hardware import HardwareSettings
from vdr.study.sections.teacher import TeacherSettings

__all__ = ["PagesOf", "RatingEngineOf", "TransformersTeacher", "load_teacher"]

SLOT = "{query}"


def load_teacher(
    folder: Path, device: str = "cpu", *, attention: str = "sdpa", revision: str | None = None
) -> Qwen2_5_VLForConditionalGeneration:
    """The teacher's model for inference. Raises `BadInput` when keys are missing or unexpected."""
    model, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, revision=revision, attn_implementation=attention, dtype="auto", output_loading_info=True
    )
    wrong = {k: sorted(info[k])[:3] for k in ("missing_keys", "unexpected_keys") if info.get(k)}
    if wrong:
        raise BadInput(
            f"the checkpoint does not fit the model: {wrong}", where=folder, todo="use a Qwen2.5-VL checkpoint"
        )
    return model.to(device).eval()


@dataclass
class _Prefix:
    cache: list[tuple[torch.Tensor, torch.Tensor]]
    length: int
    next_position: int


class TransformersTeacher:
    """Qwen2.5-VL as a judge of pages, in this process."""

    def __init__(self, folder: Path, settings: TeacherSettings, *, device: str = "cpu"):
        self.settings = settings
        self.device = device
        self.model = load_teacher(folder, device)
        self.processor = Processor.from_pretrained(folder, max_visual_tokens=settings.max_visual_tokens)
        self.tokenizer = self.processor.tokenizer
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")

    # -- ratings ---------------------------------------------------------------------------------------------------
    def rate_page(self, page: Image.Image, queries: list[str]) -> list[str]:
        """Raw replies to the rating prompt, one a query (WT App. B)."""
        return self._reply(page, queries, RATE_PROMPT, self.settings.max_new_tokens)

    @torch.inference_mode()
    def yes_no(self, page: Image.Image, queries: list[str]) -> list[float]:
        """P(yes) = e^l_yes / (e^l_yes + e^l_no) from the first token's log-probabilities (WT App. B)."""
        yes, no = (self.tokenizer(w, add_special_tokens=False)["input_ids"][0] for w in ("yes", "no"))
        prefix = self._prefix([page], YES_NO_PROMPT)
        out: list[float] = []
        for batch in self._batches(queries):
            logits, *_ = self._blocks(prefix, [0] * len(batch), batch, YES_NO_PROMPT)
            out += torch.softmax(logits[:, [yes, no]].float(), dim=1)[:, 0].tolist()
        return out

    @torch.inference_mode()
    def _reply(self, page: Image.Image, queries: list[str], prompt: str, most: int) -> list[str]:
        distinct = list(dict.fromkeys(queries))
        prefix = self._prefix([page], prompt)
        replies: dict[str, str] = {}
        for batch in self._batches(distinct):
            tokens = self._greedy(prefix, [0] * len(batch), batch, prompt, most)
            replies |= dict(zip(batch, self.tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True))
        return [replies[q] for q in queries]

    def _batches(self, queries: list[str]) -> list[list[str]]:
        size = self.settings.batch_pairs
        return [queries[i : i + size] for i in range(0, len(queries), size)]

    def _split(self, prompt: str) -> tuple[str, str]:
        # The space before the query belongs to the block, so that the query's first word has its own token.
        before, after = chat(prompt).split(" " + SLOT)
        return before, after

    def _prefix(self, pages: Sequence[Image.Image], prompt: str) -> _Prefix:
        """What stands before the query, for pages of one size."""
        pixel_values, grid = self.processor.pixels(pages)
        ids, mask = self.processor.page_ids(grid, self._split(prompt)[0])
        cache = DynamicCache(config=self.model.config.get_text_config())
        positions, _ = self.model.model.get_rope_index(
            ids,
            mm_token_type_ids=(ids == self.processor.image_token_id).long(),
            image_grid_thw=grid,
            attention_mask=mask,
        )
        self.model(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            pixel_values=pixel_values.to(self.device, self.model.dtype),
            image_grid_thw=grid.to(self.device),
            position_ids=positions.to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        kept = [(layer.keys, layer.values) for layer in cache.layers]
        return _Prefix(kept, ids.shape[1], int(positions.max()) + 1)

    def _blocks(
        self, prefix: _Prefix, page_of: Sequence[int], queries: Sequence[str], prompt: str
    ) -> tuple[torch.Tensor, DynamicCache, torch.Tensor, torch.Tensor]:
        """Logits after each query's prompt ``[k, V]``, the cache behind them, its mask, and the next positions ``[k]``.

        ``page_of`` says which of the prefix's pages each query is about.
        """
        after = self._split(prompt)[1]
        ids = self.tokenizer([f" {q}{after}" for q in queries], add_special_tokens=False)["input_ids"]
        k, longest = len(ids), max(map(len, ids))
        tokens = torch.full((k, longest), self.processor.pad_token_id)
        valid = torch.zeros((k, longest), dtype=torch.long)
        for i, row in enumerate(ids):
            tokens[i, : len(row)] = torch.tensor(row)
            valid[i, : len(row)] = 1
        cache = DynamicCache(config=self.model.config.get_text_config())
        for i, (keys, values) in enumerate(prefix.cache):
            cache.update(keys[list(page_of)], values[list(page_of)], i)
        mask = torch.cat([torch.ones(k, prefix.length, dtype=torch.long), valid], dim=1).to(self.device)
        positions = (prefix.next_position + torch.arange(longest)).expand(3, k, -1)
        hidden = self.model.model(
            input_ids=tokens.to(self.device),
            attention_mask=mask,
            position_ids=positions.to(self.device),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        lengths = valid.sum(1)
        last = hidden[torch.arange(k), lengths.to(self.device) - 1]
        return self.model.lm_head(last), cache, mask, prefix.next_position + lengths

    def _greedy(
        self, prefix: _Prefix, page_of: Sequence[int], queries: Sequence[str], prompt: str, most: int
    ) -> list[list[int]]:
        logits, cache, mask, position = self._blocks(prefix, page_of, queries, prompt)
        replies: list[list[int]] = [[] for _ in queries]
        open_rows = torch.ones(len(queries), dtype=torch.bool)
        for step in range(most):
            chosen = logits.argmax(dim=1).cpu()
            open_rows &= chosen != self.end
            for i in torch.nonzero(open_rows).flatten().tolist():
                replies[i].append(int(chosen[i]))
            if not open_rows.any() or step == most - 1:
                break
            mask = torch.cat([mask, mask.new_ones(len(queries), 1)], dim=1)
            hidden = self.model.model(
                input_ids=chosen[:, None].to(self.device),
                attention_mask=mask,
                position_ids=(position + step).view(1, -1, 1).expand(3, -1, 1).to(self.device),
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            logits = self.model.lm_head(hidden[:, -1])
        return replies

    # -- descriptions ----------------------------------------------------------------------------------------------
    @torch.inference_mode()
    def describe(self, pages: Sequence[Image.Image], queries: Sequence[Sequence[str]], prompt: str) -> list[list[str]]:
        """Grounded descriptions of what answers each page's queries on it (WT §3, App. J).

        Pages of one size are described together: generation is sequential, so a batch costs little more than a page.
        """
        out: list[list[str]] = [[] for _ in pages]
        by_size: dict[tuple[int, int], list[int]] = {}
        for i, page in enumerate(pages):
            by_size.setdefault(page.size, []).append(i)
        for same in by_size.values():
            prefix = self._prefix([pages[i] for i in same], prompt)
            page_of = [n for n, i in enumerate(same) for _ in queries[i]]
            asked = [query for i in same for query in queries[i]]
            tokens = self._greedy(prefix, page_of, asked, prompt, self.settings.description_tokens)
            texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            for n, text in zip(page_of, texts, strict=True):
                out[same[n]].append(text)
        return out


@dataclass(frozen=True)
class RatingEngineOf:
    """Makes a `TransformersTeacher` in whatever process asks for one."""

    folder: Path
    settings: TeacherSettings
    hardware: HardwareSettings

    def __call__(self) -> TransformersTeacher:
        torch.set_num_threads(self.hardware.threads)
        return TransformersTeacher(self.folder, self.settings, device=self.hardware.device)


@dataclass(frozen=True)
class PagesOf:
    """Makes a look-up of a corpus' training pages by id in whatever process asks for one."""

    corpus: Path

    def __call__(self) -> Callable[[str], Image.Image]:
        pages = load_train(self.corpus).pages
        return lambda page_id: pages.image(pages.index(page_id))
