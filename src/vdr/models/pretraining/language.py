"""Stage two: the language tower keeps what was read, at the positions where retrieval reads it off.

The vision tower is frozen from here on. Every visual position of a page must still tell its words at the last layer, and
every token of a query its own identity. Without this stage a tiny backbone's retrieval training has nothing to start
from; like stage one it is designed lexical grounding in place of a real backbone's pretraining. The mini backbone reads
and compares; it does not generate (the teacher, grown from it, does).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from vdr.corpus import layouts, vocabulary, world
from vdr.models.fast import Group
from vdr.models.mini import mini_image_processor, mini_tokenizer, save_checkpoint
from vdr.models.pretraining.course import Course, follow, forget
from vdr.models.pretraining.lean import LeanTower, page_positions
from vdr.models.pretraining.pages import MERGED_COLUMNS, MERGED_LINES, draw_reading_pages
from vdr.models.pretraining.reading import VISION, new_backbone, word_loss
from vdr.models.processing import Processor
from vdr.models.vision import vision_features
from vdr.study.sections.models import PretrainingSettings

__all__ = ["LANGUAGE", "language_course", "language_worker", "random_query"]

LANGUAGE = "language.csv"


def random_query(rng: np.random.Generator, words: list[str]) -> str:
    """Something to read as a query: a phrased question with common or rare vocabulary, or words in any order."""
    if rng.random() < 0.5:
        domain = world.pick(rng, list(world.DOMAINS))
        page = world.draw_page(rng, "", "", domain, "", rare_share=0.4)
        slots = [slot for slot in page.slots if rng.random() < 0.5]
        phrasing = world.pick(rng, list(vocabulary.TEMPLATES))
        return world.draw_query(rng, "", page, {"+".join(slots) or "none": 1.0}, phrasing=phrasing).text
    return " ".join(world.pick(rng, words) for _ in range(int(rng.integers(3, 12))))


def language_course(settings: PretrainingSettings) -> Course:
    """The stage as the loop takes it."""
    return Course("language", settings.language_steps, settings.learning_rate, (settings.seed, 5), settings.plain())


def language_worker(rank: int, processes: int, settings: PretrainingSettings, folder: Path) -> None:
    """One process of the stage; reads ``vision.pt``, rank 0 writes the checkpoint directory and ``language.csv``."""
    tokenizer, images = mini_tokenizer(), mini_image_processor()
    processor = Processor(tokenizer, images)
    blank = tokenizer.convert_tokens_to_ids("<|vision_pad|>")
    model = new_backbone(settings.seed)
    stage_one = torch.load(folder / VISION, weights_only=True)
    model.model.visual.load_state_dict(stage_one["visual"])
    embedding = model.get_input_embeddings().weight
    embedding.data.copy_(stage_one["embedding"])
    tower = LeanTower(model)
    parameters = tower.parameters()
    pages = draw_reading_pages(settings.language_pages // processes, settings.seed * 2000 + rank, tokenizer)
    held_out = draw_reading_pages(128, settings.seed * 2000 + 999, tokenizer)
    features = vision_features(model.model.visual, pages.pixels, images)
    held_features = vision_features(model.model.visual, held_out.pixels, images)
    page_ids = processor.page_ids(torch.tensor([[1, 2 * MERGED_LINES, 2 * MERGED_COLUMNS]]))[0][0]
    positions = page_positions(page_ids.tolist(), processor.image_token_id)
    is_image = page_ids == processor.image_token_id
    words = layouts.reading_words()
    batch = settings.batch // processes

    def page_loss(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = tower(x, positions.repeat(1, targets.shape[0]), [Group(0, targets.shape[0], len(page_ids))])
        return word_loss(hidden.view(targets.shape[0], len(page_ids), -1)[:, is_image] @ embedding.T, targets, blank)

    def page_inputs(these: torch.Tensor) -> torch.Tensor:
        x = F.embedding(page_ids, embedding.detach()).repeat(these.shape[0], 1, 1)
        x[:, is_image] = these
        return x.view(-1, x.shape[2])

    def loss_of(step: int, rng: np.random.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        index = torch.from_numpy(rng.integers(len(pages), size=batch))
        reading = page_loss(page_inputs(features[index]), pages.words[index])
        texts = ["Query: " + random_query(rng, words) for _ in range(batch)]
        ids = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]
        longest = max(map(len, ids))
        padded = torch.tensor([i + [processor.pad_token_id] * (longest - len(i)) for i in ids])
        valid = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i in ids], dtype=torch.bool)
        spots = torch.arange(longest).repeat(batch).expand(3, -1)
        hidden = tower(
            F.embedding(padded, embedding.detach()).view(-1, embedding.shape[1]), spots, [Group(0, batch, longest)]
        )
        naming = F.cross_entropy((hidden[valid.view(-1)]) @ embedding.T.detach(), padded[valid])
        return reading + naming, {"reading": reading.item(), "naming": naming.item()}

    @torch.no_grad()
    def examine() -> dict[str, float]:
        return {"held_out_reading": page_loss(page_inputs(held_features), held_out.words).item()}

    course = language_course(settings)
    log = follow(course, folder, parameters, loss_of, examine, rank=rank, processes=processes)
    if rank == 0:
        save_checkpoint(model, tokenizer, folder / "checkpoint")
        pd.DataFrame(log).to_csv(folder / LANGUAGE, index=False)  # last: it says that the stage is done
        forget(folder, course.name)
