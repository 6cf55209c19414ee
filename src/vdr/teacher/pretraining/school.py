"""Training the mini teacher: a generative judge grown from the mini backbone.

Two more things are learned than the reply itself, and without them no judgement forms at this size: the backbone's first
stage put page features into the space of words, and while the teacher learns to rate, an auxiliary head predicts at each
content word of the query whether what it names holds of the page. To save time the first part of the training asks for
the rating straight after the query; the last part uses the full prompts, with the rating, the yes/no reply and the
description each after its own text.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLForConditionalGeneration

from vdr.corpus import layouts
from vdr.models.fast import Group
from vdr.models.mini import mini_config, mini_image_processor, save_checkpoint
from vdr.models.pretraining.lean import LeanTower, page_positions
from vdr.models.pretraining.pages import MERGED_COLUMNS, MERGED_LINES
from vdr.models.pretraining.parallel import average_gradients, cosine_schedule
from vdr.models.processing import Processor
from vdr.models.prompts import DESCRIBE_PROMPT, RATE_PROMPT, YES_NO_PROMPT, chat
from vdr.models.vision import vision_features
from vdr.study.sections.teacher import TeacherPretrainingSettings
from vdr.teacher.pretraining.lessons import Lesson, auc, describe, draw_lesson, draw_lesson_page

__all__ = ["Classroom", "grow_teacher", "school_worker"]

RATE, YES_NO, DESCRIBE, SHORT = "rate", "yes_no", "describe", "short"
SHORT_PART = "short.pt"


def grow_teacher(backbone: Path, layers: int) -> Qwen2_5_VLForConditionalGeneration:
    """The backbone with further language layers that start as identities (their output projections are zero)."""
    small = Qwen2_5_VLForConditionalGeneration.from_pretrained(backbone)
    processor = Processor.from_pretrained(backbone)
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(mini_config(processor.tokenizer, text_layers=layers))
    _, unexpected = model.load_state_dict(small.state_dict(), strict=False)
    assert not unexpected, unexpected
    for layer in model.model.language_model.layers[small.config.text_config.num_hidden_layers :]:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


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


def school_worker(rank: int, processes: int, settings: TeacherPretrainingSettings, backbone: Path, out: Path) -> None:
    """One process of the teacher's training; rank 0 writes the checkpoint directory and ``teacher.csv``."""
    processor = Processor.from_pretrained(backbone)
    images = mini_image_processor()
    model = grow_teacher(backbone, settings.layers)
    embedding = model.get_input_embeddings().weight.detach().clone()
    tower = LeanTower(model)
    presence_head = nn.Linear(embedding.shape[1], 1)
    parameters = [*tower.parameters(), *presence_head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    rng = np.random.default_rng([settings.seed, rank])
    records = [draw_lesson_page(rng, f"teacher-{rank}-{i}") for i in range(settings.pages // processes)]
    pixels = torch.from_numpy(np.stack([layouts.render(r)[0] for r in records]))
    features = vision_features(model.model.visual, pixels, images)
    del pixels
    room = Classroom(processor, embedding)
    held = Examination(settings, model, room, images)
    log: list[dict] = []
    started, n = time.perf_counter(), settings.batch_pages // processes
    steps = settings.short_steps + settings.full_steps
    first = 0
    if (out / SHORT_PART).is_file():  # a run that was stopped in the last part goes on from the end of the first
        saved = torch.load(out / SHORT_PART, weights_only=True)
        model.load_state_dict(saved["model"])
        presence_head.load_state_dict(saved["presence"])
        first = settings.short_steps
    for step in range(first, steps):
        short = step < settings.short_steps
        if step == settings.short_steps:
            optimiser = torch.optim.AdamW(parameters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
            if rank == 0:
                out.mkdir(parents=True, exist_ok=True)
                torch.save({"model": model.state_dict(), "presence": presence_head.state_dict()}, out / SHORT_PART)
        # Each part has a schedule of its own: the full prompts are new to the model.
        part = (step, settings.short_steps) if short else (step - settings.short_steps, settings.full_steps)
        peak = settings.learning_rate if short else settings.full_learning_rate
        for group in optimiser.param_groups:
            group["lr"] = peak * cosine_schedule(*part, 20)
        task = SHORT if short else settings.full_tasks[step % len(settings.full_tasks)]
        hard = settings.hard_share * min(1.0, step / (0.5 * settings.short_steps))
        index = rng.integers(len(records), size=n)
        lessons = [[draw_lesson(rng, records[i], records, hard) for _ in range(settings.queries_a_page)] for i in index]
        if task == DESCRIBE:
            lessons = [[draw_lesson(rng, records[i], [], 0.0, written_for_page=True) for _ in range(4)] for i in index]
        rows = room.rows(
            task,
            features[torch.from_numpy(index)],
            _texts(lessons),
            _replies(task, lessons, [records[i] for i in index]),
        )
        loss, parts = lesson_loss(
            tower,
            presence_head,
            embedding,
            rows,
            lessons,
            settings.presence_weight if task in (SHORT, RATE) else 0.0,
            room,
        )
        optimiser.zero_grad()
        loss.backward()
        average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if rank == 0 and (step % 50 == 49 or step in (0, settings.short_steps)):
            log.append({"step": step + 1, "task": task, **parts, **held.score(tower, SHORT if short else RATE)})
            line = " ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in log[-1].items())
            print(f"teacher {line} {(time.perf_counter() - started) / (step + 1 - first):.2f} s/step", flush=True)
            if not short:
                save_checkpoint(copy.deepcopy(model), processor.tokenizer, out / "checkpoint")
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(log).to_csv(out / "teacher.csv", index=False)
        save_checkpoint(model, processor.tokenizer, out / "checkpoint")


def _texts(lessons: list[list[Lesson]]) -> list[list[str]]:
    return [[lesson.query.text for lesson in row] for row in lessons]


def _replies(task: str, lessons: list[list[Lesson]], pages: list) -> list[list[str]]:
    if task == DESCRIBE:
        return [[describe(lesson.query, page) for lesson in row] for row, page in zip(lessons, pages, strict=True)]
    if task == YES_NO:
        return [["yes" if lesson.grade >= 2 else "no" for lesson in row] for row in lessons]
    return [[str(lesson.rating) for lesson in row] for row in lessons]


def lesson_loss(
    tower: LeanTower,
    presence_head: nn.Linear,
    embedding: torch.Tensor,
    rows: dict,
    lessons: list[list[Lesson]],
    presence_weight: float,
    room: Classroom,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Cross-entropy of the reply, and of the presence head at the query's content words."""
    hidden = tower(rows["x"], rows["positions"], rows["groups"])
    asked = rows["target"] >= 0
    reply = F.cross_entropy(hidden[asked] @ embedding.T, rows["target"][asked])
    if presence_weight == 0:
        return reply, {"reply": reply.item(), "presence": float("nan")}
    blocks, flat = rows["blocks"], [lesson for row in lessons for lesson in row]
    where, truth = [], []
    for i, lesson in enumerate(flat):
        names = {
            room.tokenizer(f" {w}", add_special_tokens=False)["input_ids"][0]: held
            for w, held in lesson.presence.items()
        }
        for j, token in enumerate(blocks[i].tolist()):
            if token in names:
                where.append(rows["first_row"] + i * blocks.shape[1] + j)
                truth.append(float(names[token]))
    guess = presence_head(hidden[torch.tensor(where)]).squeeze(1)
    presence = F.binary_cross_entropy_with_logits(guess, torch.tensor(truth))
    return reply + presence_weight * presence, {"reply": reply.item(), "presence": presence.item()}


class Examination:
    """Held-out pages and queries of the teacher's own split: easy and hard pairs, scored by expected rating."""

    def __init__(self, settings: TeacherPretrainingSettings, model: nn.Module, room: Classroom, images: object):
        rng = np.random.default_rng([settings.seed, 10_000])
        self.records = [draw_lesson_page(rng, f"exam-{i}") for i in range(48)]
        pixels = torch.from_numpy(np.stack([layouts.render(r)[0] for r in self.records]))
        self.features = vision_features(model.model.visual, pixels, images)  # type: ignore[arg-type]
        self.lessons = [
            [draw_lesson(rng, r, self.records, 0.0 if k < 4 else 1.0) for k in range(8)] for r in self.records
        ]
        self.room = room
        self.values = torch.tensor([room._ids(str(v))[0] for v in (0, 20, 50, 75, 100)])

    @torch.no_grad()
    def score(self, tower: LeanTower, task: str) -> dict[str, float]:
        """AUC of relevant (grade ≥ 2) against not, on easy and on hard pairs, and accuracy of the cut at 50."""
        replies = [["0" for _ in row] for row in self.lessons]
        rows = self.room.rows(task, self.features, _texts(self.lessons), replies)
        hidden = tower(rows["x"], rows["positions"], rows["groups"])
        first = rows["target"].view(-1).ge(0)
        picked = hidden[first] @ self.room.embedding.T
        picked = picked.view(len(self.records) * 8, -1, picked.shape[-1])[:, 0]
        chance = picked[:, self.values].softmax(1)
        expected = (chance @ torch.tensor([0.0, 20.0, 50.0, 75.0, 100.0])).view(-1, 8).numpy()
        truth = np.array([[lesson.grade >= 2 for lesson in row] for row in self.lessons])
        out = {}
        for name, part in (("easy", slice(0, 4)), ("hard", slice(4, 8))):
            out[f"auc_{name}"] = auc(truth[:, part].ravel(), expected[:, part].ravel())
        out["accuracy"] = float(((expected >= 50) == truth).mean())
        return out
