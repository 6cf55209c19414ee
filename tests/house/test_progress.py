"""Progress: plain lines with rate and ETA in a log, a bar on a terminal, a file for a parent."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from vdr.progress import PROGRESS_FILE, Progress, clock, track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    """A clock that moves when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("vdr.progress.time.monotonic", lambda: self.now)


def test_log_lines_come_every_ten_seconds_with_rate_and_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    time, log = Time(monkeypatch), io.StringIO()
    with track(100, "train", "step", stream=log) as bar:
        for _ in range(100):
            time.now += 0.5
            bar.update(1, suffix="loss 0.1")
    lines = log.getvalue().splitlines()
    assert len(lines) == 6  # 50 seconds: five reports (the last at its end), and the end
    assert lines[0] == "train  20/100 step ( 20%)  2.0 step/s  ETA 40 s  loss 0.1"
    assert lines[-1] == "train  100/100 step (100%)  2.0 step/s  in 50 s  loss 0.1"


def test_a_short_task_says_nothing_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    Time(monkeypatch)
    log = io.StringIO()
    assert list(track([1, 2, 3], "read", "page", stream=log)) == [1, 2, 3]
    assert log.getvalue() == ""


def test_a_terminal_gets_one_line_that_ends_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    time, screen = Time(monkeypatch), Terminal()
    with track(4, "encode", "page", stream=screen) as bar:
        for _ in range(4):
            time.now += 2.5
            bar.update()
    text = screen.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("in 10 s\n")
    assert "[############............]" in text
    assert "2.50 s/page" in text


def test_work_of_an_earlier_attempt_is_in_the_position_not_in_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    bar: Progress[int] = track(100, "train", "step", start_at=80, stream=io.StringIO())
    time.now += 10
    bar.update(10)
    assert (bar.done, bar.rate, bar.eta) == (90, 1.0, 10.0)


def test_a_broken_loop_does_not_claim_to_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    time, log = Time(monkeypatch), io.StringIO()

    def items():
        yield 1
        time.now += 11
        yield 2
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(track(items(), "read", "page", total=5, stream=log))
    assert "5/5" not in log.getvalue()


def test_a_parent_reads_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "state.json"
    monkeypatch.setenv(PROGRESS_FILE, str(target))
    with track(3, "train", "step") as bar:
        bar.update(2, suffix="loss 1")
    assert json.loads(target.read_text())["done"] == 2
    assert json.loads(target.read_text())["suffix"] == "loss 1"
    assert capsys.readouterr().err == ""


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.4, 60, 3599.6, 3661, None, float("nan"))] == ["0 s", "59 s", "1:00", "1:00:00", "1:01:01", "?", "?"]


def test_counting_by_hand_needs_no_loop() -> None:
    with pytest.raises(TypeError, match="counts by hand"):
        iter(track(3, "x", "y")).__next__()
