"""The mini models' training, a few steps of it: every stage runs, writes a checkpoint that loads, and goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file

from vdr.models.pretraining.language import language_worker
from vdr.models.pretraining.reading import read_worker
from vdr.study.sections.models import PretrainingSettings
from vdr.study.sections.teacher import TeacherPretrainingSettings, TeacherSettings
from vdr.teacher.engines import TransformersTeacher
from vdr.teacher.pretraining.school import school_worker


def test_backbone_and_teacher_are_made_and_a_stopped_teacher_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    reading = PretrainingSettings(
        pages=64, batch=8, read_steps=2, language_pages=64, language_steps=2, processes=1, compile=False
    )
    read_worker(0, 1, reading, tmp_path)
    language_worker(0, 1, reading, tmp_path)
    assert list(pd.read_csv(tmp_path / "reading.csv")["step"]) == [2]
    assert not list(tmp_path.glob("partial-*"))
    school = TeacherPretrainingSettings(
        pages=48, batch_pages=4, short_steps=1, full_steps=5, graded_steps=2, processes=1
    )
    school_worker(0, 1, school, tmp_path / "checkpoint", tmp_path / "teacher")
    log = pd.read_csv(tmp_path / "teacher" / "teacher.csv")
    assert list(log["part"].unique()) == ["short", "full", "graded"] and log["step"].max() == 8
    teacher = TransformersTeacher(tmp_path / "teacher" / "checkpoint", TeacherSettings())
    assert teacher.model.config.get_text_config().num_hidden_layers == school.layers
    weights = tmp_path / "teacher" / "checkpoint" / "model.safetensors"
    once = load_file(weights)
    assert not torch.equal(once["lm_head.weight"], once["model.embed_tokens.weight"]), "head not trained"
    (tmp_path / "teacher" / "graded.pt").unlink()
    weights.unlink()
    school_worker(0, 1, school, tmp_path / "checkpoint", tmp_path / "teacher")
    again = load_file(weights)
    assert all(torch.equal(once[name], again[name]) for name in once), "a stopped training went on to other weights"
