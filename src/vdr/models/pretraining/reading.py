"""Stage one: the vision tower learns to read.

Every merged token must tell its eight characters (an auxiliary head, discarded afterwards) and the words that touch it,
by cosine with the language tower's *input embeddings*: after this stage a page's features lie in the space of words, so
that page and query can be compared from the first language layer on. This is designed lexical grounding; it stands in
for what a real backbone has from its own pretraining.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.models.mini import mini_config, mini_image_processor, mini_tokenizer
from vdr.models.pretraining.course import Course, follow, forget
from vdr.models.pretraining.pages import MERGED_COLUMNS, MERGED_LINES, ReadingPages, draw_reading_pages
from vdr.models.vision import patchify, vision_forward, vision_positions, vision_tower
from vdr.study.sections.models import PretrainingSettings

__all__ = ["VISION", "character_targets", "new_backbone", "read_worker", "reading_course", "word_loss"]

CHARACTERS = 96  # printable ASCII and one spare
WORD_SCALE = 20.0
BLANK_WEIGHT = 0.2
VISION = "vision.pt"


def new_backbone(seed: int, text_layers: int = 3) -> Qwen2_5_VLForConditionalGeneration:
    """An untrained mini backbone; embeddings of unit length, since features are compared with them by cosine."""
    torch.manual_seed(seed)
    tokenizer = mini_tokenizer()
    model = Qwen2_5_VLForConditionalGeneration(mini_config(tokenizer, text_layers=text_layers))
    embedding = model.get_input_embeddings().weight
    nn.init.normal_(embedding, std=embedding.shape[1] ** -0.5)
    return model


def character_targets(characters: torch.Tensor) -> torch.Tensor:
    """Character classes under each merged token: uint8 ``[n, lines, columns]`` → int64 ``[n, tokens, 8]``."""
    n = characters.shape[0]
    grid = characters.view(n, MERGED_LINES, 2, MERGED_COLUMNS, 4).permute(0, 1, 3, 2, 4)
    return grid.reshape(n, -1, 8).long() - 32


def word_loss(logits: torch.Tensor, words: torch.Tensor, blank: int) -> torch.Tensor:
    """Cross-entropy against a uniform target over each token's words; blank tokens weigh less.

    Args:
        logits: ``[n, tokens, vocabulary]``.
        words: int64 ``[n, tokens, K]``, −1 padded.
        blank: the id that marks a token without words.
    """
    present = words >= 0
    chosen = logits.gather(2, words.clamp(min=0)).float()
    mean = (chosen * present).sum(2) / present.sum(2)
    loss = torch.logsumexp(logits.float(), dim=2) - mean - present.sum(2).log()
    weight = torch.where(words[:, :, 0] == blank, BLANK_WEIGHT, 1.0)
    return (loss * weight).sum() / weight.sum()


def word_logits(features: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """Scaled cosine of features ``[…, D]`` with every input embedding ``[vocabulary, D]``."""
    return WORD_SCALE * F.normalize(features, dim=-1) @ F.normalize(embedding, dim=-1).T


def reading_course(settings: PretrainingSettings) -> Course:
    """The stage as the loop takes it."""
    return Course("reading", settings.read_steps, settings.learning_rate, (settings.seed, 77), settings.plain(), warmup=50)


def read_worker(rank: int, processes: int, settings: PretrainingSettings, out: Path) -> None:
    """One process of the reading stage; rank 0 writes ``vision.pt`` (tower and embeddings) and ``reading.csv``."""
    tokenizer = mini_tokenizer()
    images = mini_image_processor()
    blank = tokenizer.convert_tokens_to_ids("<|vision_pad|>")
    model = new_backbone(settings.seed)
    visual, embedding = model.model.visual, model.get_input_embeddings().weight
    head = nn.Linear(visual.config.out_hidden_size, 8 * CHARACTERS)
    parameters = [*visual.parameters(), embedding, *head.parameters()]
    pages = draw_reading_pages(settings.pages // processes, settings.seed * 1000 + rank, tokenizer)
    held_out = draw_reading_pages(128, settings.seed * 1000 + 999, tokenizer)
    grid = (MERGED_LINES * 2, MERGED_COLUMNS * 2)
    cos, sin = vision_positions(visual, grid)

    def forward(patches: torch.Tensor) -> torch.Tensor:
        # The sum with zero keeps the result from being a view, which the compiler (torch 2.13) restores wrongly.
        return vision_tower(visual, patches, cos, sin) + 0.0

    if settings.compile:
        forward = torch.compile(forward)

    def loss_of(step: int, rng: np.random.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        index = torch.from_numpy(rng.integers(len(pages), size=settings.batch // processes))
        features = forward(patchify(pages.pixels[index], images))
        words = word_loss(word_logits(features, embedding), pages.words[index], blank)
        letters = F.cross_entropy(
            head(features).view(-1, CHARACTERS), character_targets(pages.characters[index]).view(-1)
        )
        return words + letters, {"words": words.item(), "letters": letters.item()}

    def examine() -> dict[str, float]:
        return reading_accuracy(visual, head, embedding, held_out, blank)

    course = reading_course(settings)
    log = follow(course, out, parameters, loss_of, examine, rank=rank, processes=processes)
    if rank == 0:
        match_lengths(visual, embedding, held_out)
        out.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(log).to_csv(out / "reading.csv", index=False)
        kept = {"visual": visual.state_dict(), "embedding": embedding.detach(), "head": head.state_dict()}
        torch.save(kept, out / "vision.new.pt")
        os.replace(out / "vision.new.pt", out / VISION)  # last: it says that the stage is done
        forget(out, course.name)


@torch.no_grad()
def match_lengths(visual: nn.Module, embedding: torch.Tensor, pages: ReadingPages) -> None:
    """Scale the tower's output to the embeddings' length (cosines do not change), so that both suit one residual stream."""
    features = vision_forward(
        visual, patchify(pages.pixels, mini_image_processor()), (MERGED_LINES * 2, MERGED_COLUMNS * 2)
    )
    factor = embedding.norm(dim=-1).mean() / features.norm(dim=-1).mean()
    last = visual.merger.mlp[-1]
    last.weight.mul_(factor)
    last.bias.mul_(factor)


@torch.no_grad()
def reading_accuracy(
    visual: nn.Module, head: nn.Module, embedding: torch.Tensor, pages: ReadingPages, blank: int
) -> dict[str, float]:
    """Held-out reading: accuracy on printed characters, and recall of a token's words among as many best guesses."""
    features = vision_forward(
        visual, patchify(pages.pixels, mini_image_processor()), (MERGED_LINES * 2, MERGED_COLUMNS * 2)
    )
    target = character_targets(pages.characters)
    guess = head(features).view(*target.shape, CHARACTERS).argmax(-1)
    printed = target > 0
    present = (pages.words >= 0) & (pages.words[:, :, :1] != blank)
    logits = word_logits(features, embedding)
    counts = present.sum(2)
    order = logits.argsort(dim=2, descending=True)[:, :, : pages.words.shape[2]]
    taken = torch.arange(order.shape[2]) < counts[:, :, None]
    hit = ((order[:, :, :, None] == pages.words[:, :, None, :]) & taken[:, :, :, None] & present[:, :, None, :]).any(3)
    return {
        "characters_right": (guess == target)[printed].float().mean().item(),
        "words_recalled": (hit.sum() / counts.sum()).item(),
    }
