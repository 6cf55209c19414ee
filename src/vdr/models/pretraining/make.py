"""Making the mini backbone from nothing: both stages, then a report of how well it reads pages it never saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.models.fast import Group
from vdr.models.mini import mini_image_processor
from vdr.models.pretraining.course import check
from vdr.models.pretraining.language import LANGUAGE, language_course, language_worker
from vdr.models.pretraining.lean import LeanTower, page_positions
from vdr.models.pretraining.pages import MERGED_COLUMNS, MERGED_LINES, ReadingPages, draw_reading_pages
from vdr.models.pretraining.parallel import launch
from vdr.models.pretraining.reading import VISION, read_worker, reading_course
from vdr.models.processing import Processor
from vdr.models.vision import vision_features
from vdr.study.sections.models import PretrainingSettings

__all__ = ["make_backbone", "reading_report"]

SAMPLES = 3


def make_backbone(out: Path, settings: PretrainingSettings, measures: dict[str, Any]) -> None:
    """Write ``checkpoint/`` (the hub's format), ``loss.csv``, ``report.json`` and ``samples/``.

    A finished stage is not repeated, a stopped one goes on. Raises `BadInput` where it was stopped with other settings.
    """
    stages = ((VISION, reading_course, read_worker), (LANGUAGE, language_course, language_worker))
    for done, course, worker in stages:
        if not (out / done).is_file():
            check(course(settings), out, settings.processes)
            launch(worker, settings.processes, settings, out)
    report = reading_report(out / "checkpoint", settings.seed, out)
    measures.update({k: v for k, v in report.items() if k != "examples"})


def read_page(
    model: Qwen2_5_VLForConditionalGeneration, processor: Processor, pages: ReadingPages
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of every vocabulary entry at every merged token, ``[n, tokens, V]``: at the vision tower's output, and at the last layer."""
    tower = LeanTower(model)
    embedding = model.get_input_embeddings().weight
    features = vision_features(model.model.visual, pages.pixels, mini_image_processor())
    grid = torch.tensor([[1, 2 * MERGED_LINES, 2 * MERGED_COLUMNS]])
    ids = processor.page_ids(grid)[0][0]
    is_image = ids == processor.image_token_id
    x = F.embedding(ids, embedding).repeat(len(pages), 1, 1)
    x[:, is_image] = features
    positions = page_positions(ids.tolist(), processor.image_token_id).repeat(1, len(pages))
    hidden = tower(x.view(-1, x.shape[2]), positions, [Group(0, len(pages), len(ids))]).view(len(pages), len(ids), -1)
    seen = F.normalize(features, dim=-1) @ F.normalize(embedding, dim=-1).T
    return seen, hidden[:, is_image] @ embedding.T


@torch.no_grad()
def reading_report(checkpoint: Path, seed: int, out: Path, pages_read: int = 200) -> dict[str, Any]:
    """How well the backbone reads unseen pages: share of a token's words among as many best guesses, by kind of page."""
    processor = Processor.from_pretrained(checkpoint)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(checkpoint).eval()
    tokenizer = processor.tokenizer
    blank = tokenizer.convert_tokens_to_ids("<|vision_pad|>")
    report: dict[str, Any] = {"unseen_pages": 2 * pages_read, "parameters": sum(p.numel() for p in model.parameters())}
    (out / "samples").mkdir(parents=True, exist_ok=True)
    examples = []
    for kind, scatter in (("layouts", 0.0), ("scattered_words", 1.0)):
        pages = draw_reading_pages(pages_read, seed * 3000 + int(scatter), tokenizer, scatter_share=scatter)
        seen, last = read_page(model, processor, pages)
        report[kind] = {
            "word_recall_vision": recall(seen, pages.words, blank),
            "word_recall_last_layer": recall(last, pages.words, blank),
        }
        for i in range(SAMPLES if kind == "layouts" else 1):
            name = f"samples/{kind}-{i}.png"
            Image.fromarray(pages.pixels[i].numpy()).save(out / name)
            examples.append({"page": name, **_compare(last[i], pages.words[i], tokenizer, blank)})
    report["examples"] = examples
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    tables = [
        pd.read_csv(out / f"{stage}.csv").assign(stage=stage)
        for stage in ("reading", "language")
        if (out / f"{stage}.csv").is_file()
    ]
    if tables:
        pd.concat(tables).to_csv(out / "loss.csv", index=False)
    return report


def recall(scores: torch.Tensor, words: torch.Tensor, blank: int) -> float:
    """Share of the words of all tokens that are among as many best guesses as the token has words."""
    present = (words >= 0) & (words[:, :, :1] != blank)
    counts = present.sum(2)
    order = scores.argsort(dim=2, descending=True)[:, :, : words.shape[2]]
    taken = torch.arange(order.shape[2]) < counts[:, :, None]
    hit = ((order[:, :, :, None] == words[:, :, None, :]) & taken[:, :, :, None] & present[:, :, None, :]).any(3)
    return float(hit.sum() / counts.sum())


def _compare(scores: torch.Tensor, words: torch.Tensor, tokenizer: Any, blank: int) -> dict[str, str]:
    """What stands at each token and what is read there, row by row of the merged grid."""
    truth, read = [], []
    for i in range(len(words)):
        ids = [int(w) for w in words[i] if w >= 0]
        best = scores[i].argsort(descending=True)[: len(ids)].tolist()
        truth.append("·" if ids == [blank] else "".join(tokenizer.convert_ids_to_tokens(ids)).replace("Ġ", " ").strip())
        read.append(
            "·" if best == [blank] else "".join(tokenizer.convert_ids_to_tokens(best)).replace("Ġ", " ").strip()
        )
    return {"truth": " | ".join(np.array(truth)), "read": " | ".join(np.array(read))}
