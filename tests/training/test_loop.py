"""The loop: deterministic, resumable to the same bytes, the same rows for every arm, and plain about what goes
wrong.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from vdr.errors import BadInput, DamagedArtefact, VdrError
from vdr.models.student import Seeds
from vdr.study.sections.training import LoraSettings, TrainingSettings
from vdr.training.data import batch_rows, steps_per_epoch
from vdr.training.loop import learning_rate

FILES = ("adapter_model.safetensors", "adapter_config.json", "projection.safetensors", "loss.csv", "validation.csv")


def content(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    """An undisturbed run of two epochs, arm N."""
    return train(tmp_path_factory.mktemp("run"), "N", epochs=2)


def test_the_same_command_twice_gives_the_same_bytes(train, finished, tmp_path):
    again = train(tmp_path, "N", epochs=2)
    assert content(again.out) == content(finished.out)
    for measures in (again.measures, finished.measures):
        measures.pop("timing", None)
        measures.pop("memory", None)
    assert again.measures == finished.measures


def test_a_killed_run_goes_on_to_the_same_bytes(train, finished, tmp_path):
    for stop in (2, 5, 9):
        assert train(tmp_path, "N", epochs=2, stop_after=stop).finished is False
        assert (tmp_path / "partial" / "state.pt").exists()
        assert not (tmp_path / "loss.csv").exists()
    assert train(tmp_path, "N", epochs=2).finished is True
    assert content(tmp_path) == content(finished.out)
    assert not (tmp_path / "partial").exists()


def test_a_process_killed_between_checkpoints_goes_on_to_the_same_bytes(train, finished, tmp_path, monkeypatch):
    """The process dies in a step; what it had done since its last checkpoint is done again."""
    from vdr.training import loop

    real, calls = loop.batch_loss, []

    def dies(*arguments):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(loop, "batch_loss", dies)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, "N", epochs=2)
    monkeypatch.setattr(loop, "batch_loss", real)
    train(tmp_path, "N", epochs=2)
    assert content(tmp_path) == content(finished.out)


def test_resume_with_dropout_restores_the_generator(train, tmp_path):
    """peft's adapters with dropout draw from torch's generator; resuming must not replay or skip draws (WT App. F)."""
    settings = TrainingSettings(
        batch_size=8,
        lora=LoraSettings(rank=4, alpha=4, impl="peft", dropout=0.3),
        forward="library",
        projection_dim=16,
        checkpoint_every=2,
        validate_epochs=None,
        augmentation_tokens=2,
    )
    whole = train(tmp_path / "whole", epochs=1, settings=settings)
    train(tmp_path / "parts", epochs=1, settings=settings, stop_after=3)
    torch.rand(17)  # disturb the generator between the two halves
    train(tmp_path / "parts", epochs=1, settings=settings)
    assert content(whole.out) == content(tmp_path / "parts")
    plain = train(
        tmp_path / "other", epochs=1, settings=settings, seed={"order": 0, "lora": 0, "projection": 0, "dropout": 1}
    )
    assert content(plain.out) != content(whole.out)


def test_a_checkpoint_of_another_run_is_refused(train, tmp_path):
    train(tmp_path, "N", stop_after=2)
    with pytest.raises(BadInput, match="other settings"):
        train(tmp_path, "N", seed=1)
    (tmp_path / "partial" / "state.pt").write_bytes(b"cut short")
    with pytest.raises(DamagedArtefact, match="cannot be read"):
        train(tmp_path, "N")


@pytest.mark.parametrize("arm", ["baseline", "S", "A", "D"])
def test_every_arm_trains_and_reports_what_changed(train, tmp_path, arm):
    run = train(tmp_path, arm, epochs=1)
    frame = pd.read_csv(tmp_path / "loss.csv")
    assert len(frame) == run.measures["steps"] == 6
    term = {"S": "score", "A": "attention", "D": "description"}.get(arm)
    for column in ("score", "attention", "description"):
        assert frame[column].notna().all() == (column == term)
    weight = {"S": 1.0, "A": 0.1, "D": 0.2}.get(arm, 0.0)
    expected = frame["infonce"] + (weight * frame[term] if term else 0.0)
    np.testing.assert_allclose(frame["loss"], expected, rtol=1e-5)
    changed = run.measures["changed"]
    assert changed["by_kind"]["projection.weight"] == 1.0
    assert changed["by_kind"]["lora_B"] == 1.0
    assert min(changed["by_module"].values()) > 0.9
    assert run.measures["memory"]["peak_mb"] > 0
    assert run.measures["timing"]["seconds_per_step"] > 0
    assert all(math.isfinite(v["infonce"]) and 0 <= v["ndcg5"] <= 100 for v in run.measures["validation"])


def test_every_arm_of_a_seed_begins_alike_and_seeds_differ(train, tmp_path):
    runs = {arm: train(tmp_path / arm, arm, epochs=0.4, stop_after=None) for arm in ("baseline", "N", "S")}
    assert len({run.measures["initial_sha256"] for run in runs.values()}) == 1
    first = {arm: pd.read_csv(run.out / "loss.csv")["infonce"][0] for arm, run in runs.items()}
    assert first["S"] == pytest.approx(first["baseline"], abs=1e-3)  # the same rows; S leaves the denominator alone
    assert first["N"] > first["baseline"]  # the same rows, more pages in the denominator
    other = train(tmp_path / "seed1", epochs=0.4, seed=1)
    assert other.measures["initial_sha256"] != runs["baseline"].measures["initial_sha256"]


def test_order_depends_on_the_order_seed_alone_and_passes_are_permutations():
    seeds = Seeds.of(3)
    each = steps_per_epoch(50, 8)
    assert each == 6  # the two rows left over wait for another pass
    for epoch in range(2):
        rows = [row for step in range(epoch * each, (epoch + 1) * each) for row in batch_rows(step, 50, 8, seeds)]
        assert len(rows) == len(set(rows)) == 48
    assert batch_rows(0, 50, 8, seeds) != batch_rows(each, 50, 8, seeds)
    moved = Seeds(order=3, lora=9, projection=9, dropout=9)
    assert batch_rows(4, 50, 8, moved) == batch_rows(4, 50, 8, seeds)
    assert batch_rows(4, 50, 8, Seeds.of(4)) != batch_rows(4, 50, 8, seeds)
    with pytest.raises(BadInput, match="do not fill"):
        steps_per_epoch(7, 8)
    assert steps_per_epoch(118_184, 32) == 3_693  # WT App. E


def test_schedule_rises_over_a_fortieth_and_falls_to_zero():
    rates = [learning_rate(step, 11_079, 5e-5, 0.025) for step in range(11_079)]
    top = rates.index(max(rates))
    assert top == 276  # 277 steps of warm-up
    assert rates[top] == 5e-5
    assert 0 < rates[0] < 2e-7
    assert 0 < rates[-1] < 1e-8
    assert learning_rate(0, 4, 1.0, 0.0) == 1.0


def test_cached_and_live_vision_features_train_alike(train, training, tmp_path):
    cached = train(tmp_path / "cached", epochs=1)
    live = train(tmp_path / "live", epochs=1, settings=training.model_copy(update={"vision_cache": False}))
    a, b = (pd.read_csv(run.out / "loss.csv")["loss"] for run in (cached, live))
    np.testing.assert_allclose(a, b, atol=2e-3)


def test_lean_and_library_forwards_train_alike(train, training, tmp_path):
    lean = train(tmp_path / "lean", "N", epochs=1)
    library = train(tmp_path / "library", "N", epochs=1, settings=training.model_copy(update={"forward": "library"}))
    a, b = (pd.read_csv(run.out / "loss.csv")["loss"] for run in (lean, library))
    np.testing.assert_allclose(a, b, atol=2e-3)


def test_gradient_checkpointing_changes_memory_not_results(train, training, tmp_path):
    peft = {"forward": "library", "lora": LoraSettings(rank=4, alpha=4, impl="peft")}
    plain = train(tmp_path / "plain", epochs=0.5, settings=training.model_copy(update=peft))
    saved = train(
        tmp_path / "saved", epochs=0.5, settings=training.model_copy(update=peft | {"gradient_checkpointing": True})
    )
    a, b = (pd.read_csv(run.out / "loss.csv")["loss"] for run in (plain, saved))
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_accumulation_is_refused():
    with pytest.raises(ValueError, match="gradient_accumulation must be 1"):
        TrainingSettings(gradient_accumulation=2)
    with pytest.raises(ValueError, match="no dropout"):
        LoraSettings(dropout=0.1)


def test_a_loss_that_is_not_finite_names_step_and_rows(train, tmp_path, monkeypatch):
    from vdr.training import loop

    real, calls = loop.batch_loss, []

    def breaks(*arguments):
        loss, terms = real(*arguments)
        calls.append(1)
        return (loss * math.nan, terms) if len(calls) == 2 else (loss, terms)

    monkeypatch.setattr(loop, "batch_loss", breaks)
    with pytest.raises(VdrError, match=r"the loss is nan at step 2 \(rows \d+(, \d+){7}\)"):
        train(tmp_path, "baseline")
    assert not (tmp_path / "loss.csv").exists()


def test_rows_that_lack_what_the_arm_reads_are_refused(train, arm_rows, tmp_path):
    with pytest.raises(BadInput, match="finds no candidates"):
        train(tmp_path, "S", rows=arm_rows["baseline"])
    with pytest.raises(BadInput, match="finds no description"):
        train(tmp_path, "D", rows=arm_rows["baseline"])
    frame = pd.read_parquet(arm_rows["N"] / "rows.parquet")
    frame.loc[3, "page_id"] = "nowhere"
    (tmp_path / "rows").mkdir()
    frame.to_parquet(tmp_path / "rows" / "rows.parquet")
    with pytest.raises(BadInput, match="row 3 names page 'nowhere'"):
        train(tmp_path / "out", "N", rows=tmp_path / "rows")
    (tmp_path / "rows" / "rows.parquet").write_bytes(b"no table")
    with pytest.raises(DamagedArtefact, match="rows cannot be read"):
        train(tmp_path / "out", "N", rows=tmp_path / "rows")


def test_a_cache_of_another_backbone_is_refused(train, cache_dir, tmp_path, monkeypatch):
    from vdr.training import loop

    monkeypatch.setattr(loop, "backbone_fingerprint", lambda directory: "another")
    with pytest.raises(DamagedArtefact, match="other backbone"):
        train(tmp_path)


def test_the_child_process_gives_the_same_bytes(
    train, backbone_dir, corpus_dir, arm_rows, cache_dir, training, tmp_path
):
    here = train(tmp_path / "here", "baseline", epochs=0.5)
    spec = {
        "rows_dir": str(arm_rows["baseline"]),
        "maps_path": None,
        "corpus_path": str(corpus_dir),
        "vision_cache_path": str(cache_dir),
        "backbone_dir": str(backbone_dir),
        "arm": {},
        "recipe": {"name": "test", "epochs": 0.5},
        "seed": 0,
        "settings": training.plain(),
        "out_dir": str(tmp_path / "there"),
        "measures_path": str(tmp_path / "measures.json"),
        "threads": 1,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "vdr.training.child", "--spec", str(tmp_path / "spec.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=600)
    assert content(tmp_path / "there") == content(here.out)
    assert json.loads((tmp_path / "measures.json").read_text())["steps"] == 3
    (tmp_path / "spec.json").write_text(json.dumps(spec | {"sede": 1}))
    failed = subprocess.run(command, env=environment, capture_output=True, timeout=600, text=True)
    assert failed.returncode == 2
    assert failed.stderr.strip() == "vdr: spec: unknown sede"
