"""The mini teacher's classroom: pages, queries and replies as the token rows that its training runs on."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from vdr.corpus.world import PageRecord
from vdr.models.fast import Group
from vdr.models.pretraining.lean import page_positions
from vdr.models.pretraining.pages import MERGED_COLUMNS, MERGED_LINES
from vdr.models.processing import Processor
from vdr.models.prompts import DESCRIBE_PROMPT, RATE_PROMPT, YES_NO_PROMPT, chat
from vdr.teacher.pretraining.lessons import Lesson, describe

__all__ = ["DESCRIBE", "RATE", "SHORT", "YES_NO", "Classroom", "replies_to", "texts_of"]

RATE, YES_NO, DESCRIBE, SHORT = "rate", "yes_no", "describe", "short"


class Classroom:
    """Turns (page, queries) into token rows for `LeanTower`: a page prefix shared by its queries' blocks."""

    def __init__(self, processor: Processor, embedding: torch.Tensor):
        self.tokenizer: PreTrainedTokenizerBase = processor.tokenizer
        self.embedding = embedding
        self.image_token = processor.image_token_id
        self.end = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.processor = processor
        self.prefix: dict[str, torch.Tensor] = {}
        self.tail: dict[str, list[int]] = {}
        for task, prompt in ((RATE, RATE_PROMPT), (YES_NO, YES_NO_PROMPT), (DESCRIBE, DESCRIBE_PROMPT)):
            before, after = chat(prompt).split(" {query}")
            self.prefix[task] = self._with_image(before)
            self.tail[task] = self._ids(after)
        self.prefix[SHORT], self.tail[SHORT] = self.prefix[RATE], self.tail[RATE][:1]

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _with_image(self, text: str) -> torch.Tensor:
        template = self._ids(text)
        at = template.index(self.image_token)
        tokens = MERGED_LINES * MERGED_COLUMNS
        return torch.tensor(template[:at] + [self.image_token] * tokens + template[at + 1 :])

    def rating_token(self, rating: int) -> int:
        """The token that writes a rating: every integer 0–100 is one token."""
        return self._ids(str(rating))[0]

    def rows(self, task: str, features: torch.Tensor, texts: list[list[str]], replies: list[list[str]]) -> dict:
        """Rows of n pages with k queries each.

        Args:
            features: ``[n, tokens, D]``; texts and replies: n lists of k.

        Returns:
            ``x`` ``[N, D]``, ``positions`` ``[3, N]``, ``groups``, ``target`` int64 ``[N]`` (−1 where nothing is asked),
            ``blocks`` int64 ``[n·k, longest]`` token ids (pad −1) and ``first_row`` of the blocks.
        """
        n, k = len(texts), len(texts[0])
        prefix = self.prefix[task]
        lead = len(prefix)
        queries = self.tokenizer([f" {t}" for row in texts for t in row], add_special_tokens=False)["input_ids"]
        answers = [self._ids(r) + [self.end] for row in replies for r in row]
        if task == SHORT:
            answers = [a[:1] for a in answers]
        blocks = [q + self.tail[task] for q in queries]
        longest = max(len(b) + len(a) - 1 for b, a in zip(blocks, answers, strict=True))
        ids = torch.full((n * k, longest), -1)
        target = torch.full((n * k, longest), -1)
        for i, (block, answer) in enumerate(zip(blocks, answers, strict=True)):
            full = block + answer[:-1]
            ids[i, : len(full)] = torch.tensor(full)
            target[i, len(block) - 1 : len(full)] = torch.tensor(answer)
        head = F.embedding(prefix, self.embedding).repeat(n, 1, 1)
        head[:, prefix == self.image_token] = features
        body = F.embedding(ids.clamp(min=0), self.embedding)
        first = n * lead
        groups = [Group(i * lead, 1, lead) for i in range(n)]
        groups += [Group(first + i * k * longest, k, longest, prefix=i) for i in range(n)]
        spots = page_positions(prefix.tolist(), self.image_token)
        start = int(spots[0, -1]) + 1
        tail = (start + torch.arange(longest)).repeat(n * k).expand(3, -1)
        return {
            "x": torch.cat([head.view(n * lead, -1), body.view(n * k * longest, -1)]),
            "positions": torch.cat([spots.repeat(1, n), tail], dim=1),
            "groups": groups,
            "target": torch.cat([torch.full((first,), -1), target.view(-1)]),
            "blocks": ids,
            "first_row": first,
        }


def texts_of(lessons: list[list[Lesson]]) -> list[list[str]]:
    """The queries' texts, page by page."""
    return [[lesson.query.text for lesson in row] for row in lessons]


def replies_to(task: str, lessons: list[list[Lesson]], pages: list[PageRecord]) -> list[list[str]]:
    """What the task wants replied to each lesson: a description, yes or no, or the rating."""
    if task == DESCRIBE:
        return [[describe(lesson.query, page) for lesson in row] for row, page in zip(lessons, pages, strict=True)]
    if task == YES_NO:
        return [["yes" if lesson.grade >= 2 else "no" for lesson in row] for row in lessons]
    return [[str(lesson.rating) for lesson in row] for row in lessons]
