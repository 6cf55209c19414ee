"""Training the mini teacher: a generative judge grown from the mini backbone.

Two more things are learned than the reply itself, and without them no judgement forms at this size: the backbone's first
stage put page features into the space of words, and while the teacher learns to rate, an auxiliary head predicts at each
content word of the query whether what it names holds of the page. To save time the first part of the training asks for
the rating straight after the query; the second uses the full prompts, with the rating, the yes/no reply and the
description each after its own text; the last teaches it to reply with the rating that it expects (`grading`).
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.corpus import layouts
from vdr.corpus.world import PageRecord
from vdr.models.mini import mini_config, mini_image_processor, save_checkpoint
from vdr.models.pretraining.course import Course, Losses, follow, forget
from vdr.models.pretraining.lean import LeanTower
from vdr.models.processing import Processor
from vdr.models.vision import vision_features
from vdr.study.sections.teacher import TeacherPretrainingSettings
from vdr.teacher.pretraining.classroom import DESCRIBE, RATE, SHORT, Classroom, replies_to, texts_of
from vdr.teacher.pretraining.grading import expected_rating, snap, soft_targets
from vdr.teacher.pretraining.lessons import Lesson, auc, draw_lesson, draw_lesson_page

__all__ = ["course_of", "grow_teacher", "parts_of", "school_worker"]

GRADED = "graded"


def grow_teacher(backbone: Path, layers: int) -> Qwen2_5_VLForConditionalGeneration:
    """The backbone with further language layers that start as identities (their output projections are zero).

    Its output head starts as the embedding and is trained apart from it, as in the 72B teacher: the backbone's embeddings
    of word pieces were never used for writing, and a frozen head leaves them unwritable.
    """
    small = Qwen2_5_VLForConditionalGeneration.from_pretrained(backbone)
    processor = Processor.from_pretrained(backbone)
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(mini_config(processor.tokenizer, text_layers=layers, tied=False))
    _, unexpected = model.load_state_dict(small.state_dict(), strict=False)
    assert not unexpected, unexpected
    for layer in model.model.language_model.layers[small.config.text_config.num_hidden_layers :]:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


@dataclass(frozen=True)
class Part:
    """One part of the training: what it asks in turn, for how many steps, at what peak learning rate."""

    name: str
    tasks: tuple[str, ...]
    steps: int
    peak: float


def parts_of(settings: TeacherPretrainingSettings) -> list[Part]:
    """Short prompts, full prompts, then graded replies."""
    return [
        Part(SHORT, (SHORT,), settings.short_steps, settings.learning_rate),
        Part("full", settings.full_tasks, settings.full_steps, settings.full_learning_rate),
        Part(GRADED, settings.graded_tasks, settings.graded_steps, settings.graded_learning_rate),
    ]


def course_of(settings: TeacherPretrainingSettings, part: Part, number: int) -> Course:
    """A part as the loop takes it."""
    return Course(part.name, part.steps, part.peak, (settings.seed, number), settings.plain(), warmup=20)


def school_worker(rank: int, processes: int, settings: TeacherPretrainingSettings, backbone: Path, out: Path) -> None:
    """One process of the teacher's training; rank 0 writes the checkpoint directory and ``teacher.csv``.

    Rank 0 also leaves ``<part>.pt`` and ``<part>.csv`` at the end of each part. A run that is started again in the same
    directory goes on where it was stopped, with the same result: every part starts its optimiser anew, and every step
    draws its lessons from a generator of its own.
    """
    processor = Processor.from_pretrained(backbone)
    images = mini_image_processor()
    model = grow_teacher(backbone, settings.layers)
    embedding = model.get_input_embeddings().weight.detach().clone()
    tower = LeanTower(model)
    head = model.lm_head.weight
    presence_head = nn.Linear(embedding.shape[1], 1)
    parameters = [*tower.parameters(), head, *presence_head.parameters()]
    rng = np.random.default_rng([settings.seed, rank])
    records = [draw_lesson_page(rng, f"teacher-{rank}-{i}") for i in range(settings.pages // processes)]
    pixels = torch.from_numpy(np.stack([layouts.render(r)[0] for r in records]))
    features = vision_features(model.model.visual, pixels, images)
    del pixels
    room = Classroom(processor, embedding)
    held = Examination(settings, model, room, images)
    out.mkdir(parents=True, exist_ok=True)
    logs: list[pd.DataFrame] = []
    behind = 0
    for number, part in enumerate(parts_of(settings)):
        kept = out / f"{part.name}.pt"
        if kept.is_file():
            saved = torch.load(kept, weights_only=True)
            model.load_state_dict(saved["model"])
            presence_head.load_state_dict(saved["presence"])
        else:
            course = course_of(settings, part, number)
            teach = _Teaching(settings, part, tower, head, presence_head, records, features, room, behind)
            share = max(1, settings.batch_pages // processes)

            def loss_of(step: int, rng: np.random.Generator, teach: _Teaching = teach, share: int = share) -> Losses:
                return teach.loss(step, rng, share)

            def examine(task: str = SHORT if part.name == SHORT else RATE) -> dict[str, float]:
                return held.score(tower, task)

            log = follow(course, out, parameters, loss_of, examine, rank=rank, processes=processes)
            if rank == 0:
                rows = pd.DataFrame(log)
                rows.insert(1, "part", part.name)
                rows["step"] += behind
                rows.to_csv(out / f"{part.name}.csv", index=False)
                save_checkpoint(copy.deepcopy(model), processor.tokenizer, out / "checkpoint")
                torch.save({"model": model.state_dict(), "presence": presence_head.state_dict()}, out / "part.new.pt")
                os.replace(out / "part.new.pt", kept)  # last: it says that the part is done
                forget(out, course.name)
        if rank == 0:
            logs.append(pd.read_csv(out / f"{part.name}.csv"))
        behind += part.steps
    if rank == 0:
        pd.concat(logs).to_csv(out / "teacher.csv", index=False)
        save_checkpoint(model, processor.tokenizer, out / "checkpoint")


@dataclass
class _Teaching:
    """The steps of one part in one process."""

    settings: TeacherPretrainingSettings
    part: Part
    tower: LeanTower
    head: torch.Tensor
    presence_head: nn.Linear
    records: list[PageRecord]
    features: torch.Tensor
    room: Classroom
    behind: int

    def __post_init__(self) -> None:
        graded = self.part.name == GRADED
        self.elder = (copy.deepcopy(self.tower), self.head.detach().clone()) if graded else None

    def loss(self, step: int, rng: np.random.Generator, pages: int) -> Losses:
        """The loss of `pages` pages' lessons, and its terms by task."""
        records, settings, part = self.records, self.settings, self.part
        task = part.tasks[step % len(part.tasks)]
        hard = settings.hard_share * min(1.0, (self.behind + step) / (0.5 * settings.short_steps))
        index = rng.integers(len(records), size=pages)
        if task == DESCRIBE:
            lessons = [[draw_lesson(rng, records[i], [], 0.0, written_for_page=True) for _ in range(4)] for i in index]
        else:
            each = range(settings.queries_a_page)
            lessons = [[draw_lesson(rng, records[i], records, hard) for _ in each] for i in index]
        replies = replies_to(task, lessons, [records[i] for i in index])
        features = self.features[torch.from_numpy(index)]
        rows = self.room.rows(task, features, texts_of(lessons), replies)
        if self.elder is not None and task == RATE:
            loss, terms = self._graded_loss(self.elder, rows)
        else:
            weight = settings.presence_weight if task in (SHORT, RATE) else 0.0
            loss, terms = lesson_loss(self.tower, self.head, self.presence_head, rows, lessons, weight, self.room)
        return loss, {f"{task}_{name}": value for name, value in terms.items()}

    def _graded_loss(self, elder: tuple[LeanTower, torch.Tensor], rows: dict) -> tuple[torch.Tensor, dict[str, float]]:
        """Cross-entropy of the reply's number against what the frozen elder expects, and of the end of the reply."""
        asked = torch.nonzero(rows["target"] >= 0).flatten()
        ends = rows["target"][asked] == self.room.end
        numbers = asked[~ends]
        given = (rows["x"], rows["positions"], rows["groups"])
        with torch.no_grad():
            expected = expected_rating(elder[0](*given)[numbers] @ elder[1].T, self.room.rating_token)
        targets = soft_targets(
            snap(expected, self.settings.sure), len(self.head), self.room.rating_token, self.settings.rating_width
        )
        hidden = self.tower(*given)
        reply = F.cross_entropy(hidden[numbers] @ self.head.T, targets)
        end = F.cross_entropy(hidden[asked[ends]] @ self.head.T, rows["target"][asked[ends]])
        return reply + end, {"reply": reply.item()}


def lesson_loss(
    tower: LeanTower,
    head: torch.Tensor,
    presence_head: nn.Linear,
    rows: dict,
    lessons: list[list[Lesson]],
    presence_weight: float,
    room: Classroom,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Cross-entropy of the reply, and of the presence head at the query's content words."""
    hidden = tower(rows["x"], rows["positions"], rows["groups"])
    asked = rows["target"] >= 0
    reply = F.cross_entropy(hidden[asked] @ head.T, rows["target"][asked])
    if presence_weight == 0:
        return reply, {"reply": reply.item()}
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

    def __init__(
        self,
        settings: TeacherPretrainingSettings,
        model: Qwen2_5_VLForConditionalGeneration,
        room: Classroom,
        images: object,
    ):
        rng = np.random.default_rng([settings.seed, 10_000])
        self.records = [draw_lesson_page(rng, f"exam-{i}") for i in range(48)]
        pixels = torch.from_numpy(np.stack([layouts.render(r)[0] for r in self.records]))
        self.features = vision_features(model.model.visual, pixels, images)  # type: ignore[arg-type]
        self.lessons = [
            [draw_lesson(rng, r, self.records, 0.0 if k < 4 else 1.0) for k in range(8)] for r in self.records
        ]
        self.room = room
        self.head = model.lm_head.weight

    @torch.no_grad()
    def score(self, tower: LeanTower, task: str) -> dict[str, float]:
        """AUC of relevant (grade ≥ 2) against not, on easy and hard pairs, by the expected and by the greedy rating.

        Accuracy is that of the cut at 50.
        """
        replies = [["0" for _ in row] for row in self.lessons]
        rows = self.room.rows(task, self.features, texts_of(self.lessons), replies)
        hidden = tower(rows["x"], rows["positions"], rows["groups"])
        first = rows["target"].view(-1).ge(0)
        picked = hidden[first] @ self.head.T
        picked = picked.view(len(self.records) * 8, -1, picked.shape[-1])[:, 0]
        ratings = torch.tensor([self.room.rating_token(v) for v in range(101)])
        written = picked[:, ratings].argmax(1).view(-1, 8).numpy()
        chances = picked[:, ratings].softmax(1)
        expected = (chances @ torch.arange(101.0)).view(-1, 8).numpy()
        truth = np.array([[lesson.grade >= 2 for lesson in row] for row in self.lessons])
        out = {}
        for name, part in (("easy", slice(0, 4)), ("hard", slice(4, 8))):
            out[f"auc_{name}"] = auc(truth[:, part].ravel(), expected[:, part].ravel())
        out["auc_written"] = auc(truth[:, 4:].ravel(), written[:, 4:].ravel())
        out["accuracy"] = float(((expected >= 50) == truth).mean())
        return out
