"""The mini models' training loop: a stage that was stopped goes on to the same bytes, and only with the settings it had."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vdr.errors import BadInput, DamagedArtefact
from vdr.models.pretraining.course import Course, check, follow, forget

COURSE = Course("lines", steps=23, peak=1e-2, seed=(3, 1), settings={"pages": 64}, examine_every=5, keep_every=4)


class Lines:
    """A line fitted to noisy points; its terms are named by task, as a teacher's are."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.line = nn.Linear(3, 1)
        self.even: list[float] = []

    def loss(self, step: int, rng: np.random.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        x = torch.from_numpy(rng.standard_normal((16, 3), dtype=np.float32))
        loss = (self.line(x) - x.sum(1, keepdim=True)).square().mean()
        if step % 2:
            return loss, {"odd": loss.item()}
        self.even.append(loss.item())
        return loss, {"even": loss.item()}

    def examine(self) -> dict[str, float]:
        with torch.no_grad():
            return {"error": float((self.line.weight - 1).abs().max())}

    def follow(self, course: Course, folder: Path, **more: int) -> list | None:
        return follow(course, folder, list(self.line.parameters()), self.loss, self.examine, **more)


@pytest.mark.parametrize("stops", [[4], [7], [1, 2, 22]])
def test_a_stopped_stage_goes_on_to_the_same_bytes(tmp_path: Path, stops: list[int]) -> None:
    whole, parts = Lines(), Lines()
    log = whole.follow(COURSE, tmp_path / "whole")
    for stop in stops:
        assert parts.follow(COURSE, tmp_path / "parts", stop_after=stop) is None
        parts = Lines()
    assert parts.follow(COURSE, tmp_path / "parts") == log
    assert torch.equal(parts.line.weight, whole.line.weight)
    assert torch.equal(parts.line.bias, whole.line.bias)


def test_the_log_has_every_tasks_mean_since_the_row_before(tmp_path: Path) -> None:
    lines = Lines()
    log = lines.follow(COURSE, tmp_path)
    assert log is not None
    assert [row["step"] for row in log] == [5, 10, 15, 20, 23]
    assert all(set(row) == {"step", "even", "odd", "error"} for row in log)
    assert log[-1]["error"] < log[0]["error"]
    assert log[0]["even"] == math.fsum(lines.even[:3]) / 3
    assert log[1]["even"] == math.fsum(lines.even[3:5]) / 2


def test_a_stage_goes_on_with_its_own_settings_only(tmp_path: Path) -> None:
    Lines().follow(COURSE, tmp_path, stop_after=9)
    for other in (replace(COURSE, settings={"pages": 65}), replace(COURSE, peak=2e-2), replace(COURSE, seed=(4, 1))):
        with pytest.raises(BadInput, match="belongs to a run with other settings"):
            check(other, tmp_path, 1)
        with pytest.raises(BadInput, match="belongs to a run with other settings"):
            Lines().follow(other, tmp_path)
    with pytest.raises(BadInput, match="belongs to a run with other settings"):
        check(COURSE, tmp_path, 2)
    check(COURSE, tmp_path, 1)
    state = tmp_path / "partial-lines" / "state.pt"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(DamagedArtefact, match="cannot be read"):
        check(COURSE, tmp_path, 1)
    forget(tmp_path, "lines")
    check(COURSE, tmp_path, 1)
