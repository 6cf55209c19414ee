"""Making the mini teacher: its training, then a report on pages and queries of its own split that it never saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from vdr.corpus import layouts
from vdr.models.pretraining.course import check
from vdr.models.pretraining.parallel import launch
from vdr.models.prompts import DESCRIBE_PROMPT
from vdr.study.sections.teacher import TeacherPretrainingSettings, TeacherSettings
from vdr.teacher.engines import TransformersTeacher
from vdr.teacher.parsing import parse_rating
from vdr.teacher.pretraining.lessons import auc, describe, draw_lesson, draw_lesson_page
from vdr.teacher.pretraining.school import course_of, parts_of, school_worker

__all__ = ["make_teacher", "teacher_report"]


def make_teacher(out: Path, backbone: Path, settings: TeacherPretrainingSettings, measures: dict[str, Any]) -> None:
    """Write ``checkpoint/`` (the hub's format), ``loss.csv``, ``report.json`` and ``samples/``. A stopped training goes on.

    Raises `BadInput` where it was stopped with other settings.
    """
    if not (out / "teacher.csv").is_file():
        for number, part in enumerate(parts_of(settings)):
            if not (out / f"{part.name}.pt").is_file():
                check(course_of(settings, part, number), out, settings.processes)
        launch(school_worker, settings.processes, settings, backbone, out)
    measures.update(
        {k: v for k, v in teacher_report(out / "checkpoint", settings.seed, out).items() if k != "examples"}
    )


def teacher_report(checkpoint: Path, seed: int, out: Path, pages: int = 150) -> dict[str, Any]:
    """Greedy ratings, yes/no and descriptions of held-out lessons through the engine that the study uses."""
    rng = np.random.default_rng([seed, 20_000])
    records = [draw_lesson_page(rng, f"report-{i}") for i in range(pages)]
    lessons = [[draw_lesson(rng, record, records, 0.7) for _ in range(8)] for record in records]
    teacher = TransformersTeacher(checkpoint, TeacherSettings())
    truth, ratings, chances, hard, examples = [], [], [], [], []
    parsed = written = grounded = 0
    (out / "samples").mkdir(parents=True, exist_ok=True)
    for i, (record, row) in enumerate(zip(records, lessons, strict=True)):
        page = Image.fromarray(layouts.render(record)[0])
        queries = [lesson.query.text for lesson in row]
        replies = teacher.rate_page(page, queries)
        chances += teacher.yes_no(page, queries)
        values = [parse_rating(reply) for reply in replies]
        parsed += sum(v is not None for v in values)
        ratings += [np.nan if v is None else v for v in values]
        truth += [lesson.grade >= 2 for lesson in row]
        hard += [lesson.grade == 1 for lesson in row]
        answered = [lesson for lesson in row if lesson.grade == 3][:2]
        texts = (
            teacher.describe([page], [[lesson.query.text for lesson in answered]], DESCRIBE_PROMPT)[0]
            if answered
            else []
        )
        for lesson, text in zip(answered, texts, strict=True):
            label = describe(lesson.query, record).split(" ")[0]
            written += 1
            grounded += label in text.split(" ")
        if i < 3:
            Image.fromarray(layouts.render(record)[0]).save(out / "samples" / f"page-{i}.png")
            examples.append(
                {"page": f"samples/page-{i}.png", "queries": queries, "replies": replies, "descriptions": texts}
            )
    t, r, p = np.asarray(truth), np.asarray(ratings), np.asarray(chances)
    known = ~np.isnan(r)
    said = r >= 0.5
    report = {
        "pages": pages,
        "pairs": len(t),
        "parsed_share": parsed / len(t),
        "true_share": float(t.mean()),
        "auc": auc(t[known], r[known]),
        "yesno_auc": auc(t, p),
        "accuracy": float((said == t)[known].mean()),
        "recall": float(said[known & t].mean()),
        "specificity": float((~said[known & ~t]).mean()),
        "specificity_on_topic": float((~said[known & np.asarray(hard)]).mean()),
        "precision_of_protection": float(t[known & said].mean()),
        "miss_rate": float(t[known & ~said].mean()),
        "share_at_0": float((r[known] == 0).mean()),
        "share_at_100": float((r[known] == 1).mean()),
        "descriptions": written,
        "descriptions_that_name_the_label": grounded / max(1, written),
        "examples": examples,
    }
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    if (out / "teacher.csv").is_file():
        pd.read_csv(out / "teacher.csv").to_csv(out / "loss.csv", index=False)
    return report
