"""Steps and plans: keys before anything runs, nothing made twice, and why a cached thing does not serve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vdr.errors import DamagedArtefact
from vdr.graph import Step, make, order, plan_lines, planned
from vdr.store import Store


class Counting:
    """A little study: corpus → two rows → one run; counts what was built."""

    def __init__(self, seed: int = 1) -> None:
        self.built: list[str] = []
        self.corpus = self.step("corpus", "", {"seed": seed, "sizes": {"pages": 3}}, {})
        self.rows = tuple(self.step("rows", name, {"arm": name}, {"corpus": self.corpus}) for name in ("N", "S"))
        self.run = self.step("run", "all", {}, {"rows": self.rows, "corpus": self.corpus})

    def step(self, stage: str, label: str, config: dict, inputs: dict) -> Step:
        def build(out: Path, measures: dict, made: dict) -> None:
            self.built.append(f"{stage} {label}".strip())
            read = [item for value in made.values() for item in (value if isinstance(value, list) else [value])]
            (out / "value.txt").write_text(stage + "".join(item.file("value.txt").read_text() for item in read))

        return Step(stage, label, config, inputs, build)


def test_inputs_first_each_once_then_nothing(tmp_path: Path) -> None:
    study, store = Counting(), Store(tmp_path)
    artefact = make(study.run, store, quiet=True)
    assert study.built == ["corpus", "rows N", "rows S", "run all"]
    assert artefact.key == study.run.key  # the key that was known beforehand
    assert artefact.file("value.txt").read_text() == "runrowscorpusrowscorpuscorpus"
    again = Counting()
    make(again.run, store, quiet=True)
    assert again.built == []
    assert [step.name for step in order(study.run)] == ["corpus", "rows N", "rows S", "run all"]


def test_plan_says_what_runs_why_and_how_long_it_took(tmp_path: Path) -> None:
    study, store = Counting(), Store(tmp_path)
    assert [row.state for row in planned(store, study.run)] == ["to run"] * 4
    assert plan_lines(planned(store, study.run))[-1] == "0 cached, 4 to run"
    make(study.run, store, quiet=True)
    assert study.built == ["corpus", "rows N", "rows S", "run all"]
    rows = planned(store, study.run)
    assert [row.state for row in rows] == ["cached"] * 4
    assert plan_lines(rows)[-1].startswith("4 cached, 0 to run")

    changed = planned(store, Counting(seed=2).run)
    assert [row.state for row in changed] == ["to run"] * 4
    assert changed[0].why == "setting seed differs"
    assert changed[1].why == "its input corpus is another one"
    assert changed[0].seconds is not None  # last time
    assert "these took" in plan_lines(changed)[-1]
    assert plan_lines(changed)[-1].endswith("when last made and 55 B of disk")


@pytest.mark.parametrize("gone", ["corpus", "rows", "run"])
def test_what_was_deleted_behind_a_result_is_made_again_and_only_that(tmp_path: Path, gone: str) -> None:
    store = Store(tmp_path)
    first = make(Counting().run, store, quiet=True)
    shutil.rmtree(tmp_path / gone)
    study = Counting()
    assert not study.run.whole(store)
    again = make(study.run, store, quiet=True)
    assert study.built == [step.name for step in order(study.run) if step.stage == gone]
    assert study.run.whole(store)
    assert again.manifest["files"] == first.manifest["files"]


def test_a_plan_on_a_fresh_machine_goes_by_the_recorded_run(tmp_path: Path) -> None:
    study = Counting()
    recorded = [{"stage": "corpus", "label": "", "seconds": 61.0, "files": {"value.txt": {"bytes": 2_500_000}}}]
    lines = plan_lines(planned(Store(tmp_path), study.run, recorded=recorded))
    assert "recorded 1:01" in lines[0]
    assert lines[-1] == "0 cached, 4 to run; these took 1:01 one after another in the recorded run and 2 MB of disk (3 unknown)"


def test_plan_sees_work_that_was_stopped(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def stopped(out: Path, measures: dict, made: dict) -> None:
        raise KeyboardInterrupt

    step = Step("corpus", "", {}, {}, stopped)
    with pytest.raises(KeyboardInterrupt):
        make(step, store, quiet=True)
    assert [row.state for row in planned(store, step)] == ["partial"]


def test_a_damaged_input_stops_what_needs_it(tmp_path: Path) -> None:
    study, store = Counting(), Store(tmp_path)
    corpus = make(study.corpus, store, quiet=True)
    corpus.file("value.txt").write_text("other")
    with pytest.raises(DamagedArtefact, match=str(corpus.path)):
        make(study.run, store, quiet=True)
    assert study.built == ["corpus"]


def test_a_change_of_version_is_another_key() -> None:
    one = Step("corpus", "", {}, {})
    assert one.key != Step("corpus", "", {}, {}, version=2).key
