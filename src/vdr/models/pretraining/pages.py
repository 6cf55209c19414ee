"""Pages to learn reading from, with the words that stand at every merged token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from vdr.corpus import layouts, world
from vdr.corpus.draw import COLUMNS, LINES, words_on
from vdr.models.tokenizer import word_token_ids

__all__ = [
    "IN_DOMAIN",
    "MERGED_COLUMNS",
    "MERGED_LINES",
    "WORDS_A_TOKEN",
    "ReadingPages",
    "draw_reading_pages",
    "token_words",
]

# A merged token covers 2 lines × 4 characters.
MERGED_LINES, MERGED_COLUMNS = LINES // 2, COLUMNS // 4
WORDS_A_TOKEN = 10
IN_DOMAIN = (
    ("form", "letter"),
    ("form", "memo"),
    ("finance", "table"),
    ("report", "article"),
    ("chart", "barchart"),
    ("stat", "poster"),
)


@dataclass
class ReadingPages:
    """``pixels`` uint8 ``[n, H, W, 3]``; ``characters`` uint8 ``[n, lines, columns]``; ``words`` int64 ``[n, tokens, K]``, −1 padded."""

    pixels: torch.Tensor
    characters: torch.Tensor
    words: torch.Tensor
    records: list[world.PageRecord | None]

    def __len__(self) -> int:
        return len(self.records)


def token_words(
    characters: np.ndarray, tokenizer: PreTrainedTokenizerBase, blank: int, cache: dict[str, list[int]]
) -> np.ndarray:
    """Ids of the words that touch each merged token, int64 ``[MERGED_LINES · MERGED_COLUMNS, K]``, −1 padded.

    A token with no word has the one id ``blank``.
    """
    found: list[dict[int, None]] = [{} for _ in range(MERGED_LINES * MERGED_COLUMNS)]
    for line, column, word in words_on(characters):
        if word not in cache:
            cache[word] = word_token_ids(tokenizer, word)
        for c in range(column // 4, (column + len(word) - 1) // 4 + 1):
            found[(line // 2) * MERGED_COLUMNS + c].update(dict.fromkeys(cache[word]))
    out = np.full((len(found), WORDS_A_TOKEN), -1, dtype=np.int64)
    for i, ids in enumerate(found):
        kept = list(ids)[:WORDS_A_TOKEN] or [blank]
        out[i, : len(kept)] = kept
    return out


def draw_reading_pages(
    count: int, seed: int, tokenizer: PreTrainedTokenizerBase, *, scatter_share: float = 0.6
) -> ReadingPages:
    """``count`` pages: words anywhere, and in-domain layouts with common and rare vocabulary (never a suite's layout)."""
    rng = np.random.default_rng(seed)
    blank = tokenizer.convert_tokens_to_ids("<|vision_pad|>")
    cache: dict[str, list[int]] = {}
    pixels, characters, words, records = [], [], [], []
    for i in range(count):
        record = None
        if rng.random() < scatter_share:
            page, chars = layouts.scatter(rng)
        else:
            domain, family = world.pick(rng, IN_DOMAIN)
            record = world.draw_page(rng, f"reading-{seed}-{i}", "reading", domain, family, rare_share=0.4)
            page, chars = layouts.render(record)
        pixels.append(page)
        characters.append(chars)
        words.append(token_words(chars, tokenizer, blank, cache))
        records.append(record)
    return ReadingPages(
        torch.from_numpy(np.stack(pixels)),
        torch.from_numpy(np.stack(characters)),
        torch.from_numpy(np.stack(words)),
        records,
    )
