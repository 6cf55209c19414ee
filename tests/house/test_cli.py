"""The command line: help that teaches, one line and a non-zero status for anything wrong."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from vdr import cli
from vdr.errors import Busy, DamagedArtefact, NoSpace, UnfitMachine, VdrError, did_you_mean
from vdr.graph import Step
from vdr.pipeline import find_table
from vdr.study.catalogue import load_tables


@pytest.fixture
def vdr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command in this process, its outputs in a folder of its own: (status, stdout, stderr)."""
    monkeypatch.setenv("VDR_OUTPUTS", str(tmp_path / "outputs"))
    # Whether weights ship is not what is tested here, and hashing them takes time.
    monkeypatch.setattr("vdr.models.weights.identity", lambda source, revision=None: {"id": source, "revision": revision})

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(list(arguments))
        said = capsys.readouterr()
        return int(caught.value.code or 0), said.out, said.err

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "table1", "--profile", "mni"], "unknown profile 'mni'; did you mean 'mini'"),
        (["plan", "tabel1"], "unknown table or figure 'tabel1'; did you mean 'table1'"),
        (["train", "Nn"], "unknown arm 'Nn'; did you mean 'N'"),
        (["train", "N", "--seed", "9"], "profile mini has no seed 9; known: 0, 1, 2"),
        (["train", "N", "--seed", "first"], "valid int"),
        (["train", "N", "--recipe", "two_epochs"], "unknown recipe 'two_epochs'; did you mean"),
        (["trace", "N", "v9"], "unknown suite 'v9'"),
        (["plan", "table1", "--set", "training.learning_rat=1"], "did you mean 'training.learning_rate'"),
        (["plan", "table1", "--set", "suites=[v1, v7]"], "unknown suite 'v7'"),
        (["plan", "table1", "--set", "recipe=forever"], "unknown recipe 'forever'"),
        (["settings", "trainign"], "unknown section 'trainign'; did you mean 'training'"),
        (["plan", "table1", "--sett", "x=1"], "No such option"),
        (["plan"], "Missing argument"),
        (["plann"], "No such command 'plann'"),
        (["table", "table1"], "not run: Profile mini, settings as shipped; `vdr reproduce wt-table1`"),
    ],
)
def test_bad_input_is_one_line_and_status_2(vdr, tmp_path: Path, arguments: list[str], said: str) -> None:
    status, out, err = vdr(*arguments)
    assert status == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert not (tmp_path / "outputs").exists()  # nothing was written


@pytest.mark.parametrize(
    ("error", "status"),
    [(DamagedArtefact("x"), 3), (Busy("x"), 4), (UnfitMachine("x"), 5), (NoSpace("x"), 6), (OSError(errno.ENOSPC, "full"), 6)],
)
def test_every_kind_of_error_has_its_status(vdr, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int) -> None:
    def fail(self: object, name: str) -> list[str]:
        raise error

    monkeypatch.setattr("vdr.pipeline.Study.plan", fail)
    found, _, err = vdr("plan", "table1")
    assert found == status
    assert err.startswith("vdr: ")
    assert len(err.splitlines()) == 1


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, name: str) -> list[str]:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("vdr.pipeline.Study.plan", fail)
    monkeypatch.setattr("vdr.pipeline.Study.__init__", lambda self, profile: None)
    with pytest.raises(ZeroDivisionError):
        cli.main(["plan", "table1"])


def test_help_names_every_stage(vdr) -> None:
    status, out, _ = vdr("--help")
    assert status == 0
    for stage in ("corpus", "pretrain-mini", "train-teacher-mini", "mine", "rate", "rows", "train", "encode", "evaluate", "table"):
        assert stage in out
    for group in ("audit", "hac"):
        assert group in out


STAGES = ["corpus", "mine", "rate", "rows", "train", "encode", "evaluate", "table", "reproduce", "plan", "trace"]


@pytest.mark.parametrize("command", STAGES)
def test_every_stage_explains_itself(vdr, command: str) -> None:
    status, out, _ = vdr(command, "--help")
    assert status == 0
    assert "--profile" in out
    assert "--set" in out


def test_plan_of_a_fresh_clone_lists_every_run_once(vdr) -> None:
    status, out, _ = vdr("plan", "table1")
    assert status == 0
    runs = [line for line in out.splitlines() if line.startswith("to run   run ")]
    assert len(runs) == 15  # five arms, three seeds
    assert len([line for line in out.splitlines() if " corpus " in line]) == 1
    assert len([line for line in out.splitlines() if " rows N " in line]) == 1  # shared by the seeds
    assert len([line for line in out.splitlines() if " rows S-seed-" in line]) == 3  # S draws by seed
    assert out.splitlines()[-2].startswith("0 cached,")
    assert re.fullmatch(r"a full run of this profile asks for \d+ GB of disk; .* are free", out.splitlines()[-1])


def test_a_changed_setting_changes_what_depends_on_it_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from vdr.steps import Steps
    from vdr.study.catalogue import load_arms
    from vdr.study.settings import load_profile

    monkeypatch.setattr("vdr.models.weights.identity", lambda source, revision=None: {"id": source})

    def keys(*overrides: str) -> dict[str, str]:
        steps, arm = Steps(load_profile("mini", overrides)), load_arms()["N"]
        made: dict[str, Step] = {
            "corpus": steps.corpus(),
            "pools": steps.pools(),
            "ratings": steps.ratings(),
            "rows": steps.rows(arm, 0),
            "checkpoint": steps.checkpoint(arm, 0, "three_epochs"),
            "run": steps.run(arm, 0, "three_epochs"),
        }
        return {name: step.key for name, step in made.items()}

    def changed(*overrides: str) -> set[str]:
        one, other = keys(), keys(*overrides)
        return {name for name in one if one[name] != other[name]}

    assert changed("hardware.processes=1", "hardware.disk_gb=9", "supervision.queue.workers=1") == set()
    assert changed("evaluation.cutoff=10") == {"run"}
    assert changed("training.checkpoint_every=7") == set()
    assert changed("training.learning_rate=0.5") == {"pools", "ratings", "rows", "checkpoint", "run"}  # the miner is trained too
    assert changed("mining.top=10") == {"ratings", "rows", "checkpoint", "run"}
    assert changed("teacher.max_new_tokens=9") == {"ratings", "rows", "checkpoint", "run"}
    assert changed("corpus.seed=1") == {"corpus", "pools", "ratings", "rows", "checkpoint", "run"}
    assert changed("models.backbone=/elsewhere") == {"pools", "ratings", "rows", "checkpoint", "run"}


def test_arms_without_pools_do_not_wait_for_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    from vdr.graph import order
    from vdr.steps import Steps
    from vdr.study.catalogue import load_arms
    from vdr.study.settings import load_profile

    monkeypatch.setattr("vdr.models.weights.identity", lambda source, revision=None: {"id": source})
    steps = Steps(load_profile("mini"))

    def stages(arm: str) -> set[str]:
        return {step.stage for step in order(steps.run(load_arms()[arm], 0, "three_epochs"))}

    assert stages("baseline") == {"corpus", "vision", "rows", "checkpoint", "vectors", "run"}
    assert stages("A") == stages("baseline") | {"maps"}
    assert stages("D") == stages("baseline") | {"descriptions"}
    assert stages("N-mined") == stages("baseline") | {"miner", "miner-vectors", "pools", "scored"}
    assert stages("N") == stages("S") == stages("N-mined") | {"ratings"}


def test_tables_are_found_by_any_of_their_names() -> None:
    for table in load_tables().values():
        for name in (table.name, table.target, table.target.removeprefix("reproduce-")):
            assert find_table(name) is table


def test_errors_are_one_line_with_place_and_remedy() -> None:
    error = VdrError("is\nempty.", where=Path("rows.parquet"), todo="make it again")
    assert str(error) == "rows.parquet: is empty; make it again"
    assert did_you_mean("x", []) == "none is known"


def test_errors_survive_the_way_between_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(NoSpace("full", where="/x", todo="free some")))
    assert type(error) is NoSpace
    assert str(error) == "/x: full; free some"
    assert error.exit_code == 6


