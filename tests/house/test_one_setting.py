"""One setting, one result: record, tables and figures belong to the settings they were made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from vdr.compression.reproduce import reproduce, steps_of
from vdr.errors import BadInput
from vdr.finish import notes_of
from vdr.graph import order
from vdr.pipeline import Study, find_table
from vdr.study.catalogue import load_tables
from vdr.study.settings import load_profile, profile_names

CHANGED = ["training.learning_rate=0.05"]


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VDR_OUTPUTS", str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def own(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_changed_settings_have_a_place_that_says_so(outputs: Path) -> None:
    shipped, changed = load_profile("smoke"), load_profile("smoke", CHANGED)
    assert (shipped.outputs, shipped.artefacts) == (outputs / "smoke", outputs / "smoke" / "artefacts")
    assert changed.outputs.parent == outputs
    assert changed.outputs.name.startswith("smoke-training.learning_rate=0.05-")
    assert changed.artefacts == shipped.artefacts, "keys tell artefacts apart, so what did not change is shared"
    others = {load_profile("smoke", [f"training.learning_rate={rate}"]).outputs for rate in (0.05, 0.06, 0.5)}
    assert len(others) == 3 and changed.outputs in others
    assert load_profile("smoke", [f"training.learning_rate={shipped.training.learning_rate}"]).outputs == shipped.outputs


def test_the_machine_is_no_setting_of_the_result(outputs: Path) -> None:
    wide = load_profile("smoke", ["hardware.processes=1", "hardware.threads=7", "report.notebook_timeout_s=5"])
    assert wide.outputs == outputs / "smoke"
    native = load_profile("smoke", ["hardware.instructions=native"])
    assert native.outputs != outputs / "smoke"
    card = load_profile("smoke", ["hardware.device=cuda"])
    assert card.artefacts != load_profile("smoke").artefacts, "keys say nothing of the device"


def test_a_file_of_ones_own_is_not_the_shipped_profile(tmp_path: Path, outputs: Path) -> None:
    same = load_profile(own(tmp_path, "mini.yaml", "extends: mini\n"))
    other = load_profile(own(tmp_path, "mini.yaml", "extends: mini\nseeds: [5]\n"))
    assert same.outputs == outputs / "mini"
    assert other.outputs.name.startswith("mini-seeds=_5_-")
    assert other.described() == "Profile mini, settings CHANGED: seeds = [5] (shipped: [0, 1, 2])"
    mine = load_profile(own(tmp_path, "lab.yaml", "extends: mini\n"))
    edited = load_profile(own(tmp_path, "lab.yaml", "extends: mini\nseeds: [5]\n"))
    assert mine.described() == "Profile lab, a file of one's own"
    assert mine.outputs != edited.outputs, "an edited file does not show the earlier one's results"


def test_the_order_of_listing_counts_where_it_changes_the_corpus(tmp_path: Path) -> None:
    import yaml

    smoke = load_profile("smoke")
    shuffled = smoke.model_dump(mode="json")
    shuffled["corpus"]["datasets"].reverse()
    path = own(tmp_path, "smoke.yaml", yaml.safe_dump({k: v for k, v in shuffled.items() if k != "name"}, sort_keys=False))
    assert load_profile(path).outputs != smoke.outputs


def test_children_write_to_their_parents_place() -> None:
    changed = Study(load_profile("smoke", CHANGED))
    _, path = changed._profile_arguments()
    child = load_profile(path)
    assert (child.outputs, child.artefacts) == (changed.profile.outputs, changed.profile.artefacts)
    assert Path(path).is_relative_to(changed.profile.outputs)


@pytest.mark.parametrize("name", ["recorded", "reference", ".hidden", "two words"])
def test_names_that_outputs_cannot_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a profile's outputs; give the file another name"):
        load_profile(own(tmp_path, f"{name}.yaml", "extends: mini\n"))


# -- not run, and not recorded -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "ask",
    [
        lambda study: study.render("table1"),
        lambda study: study.render("ev-table1"),
        lambda study: study.render("wt-table4"),
        lambda study: study.claims(),
        lambda study: study.trace("baseline", "v1"),
        lambda study: study.notebooks(),
    ],
    ids=["table", "ev-table", "audit-table", "claims", "trace", "notebooks"],
)
def test_what_was_never_run_is_said_to_be_not_run(ask, outputs: Path) -> None:
    with pytest.raises(BadInput, match=r"not run: Profile smoke, settings CHANGED: training.learning_rate = 0.05 \(shipped: "):
        ask(Study(load_profile("smoke", CHANGED)))
    assert not list(outputs.rglob("*.*")), "looking writes nothing"


@pytest.mark.parametrize(
    "ask",
    [
        lambda study: study.render("table1", recorded=True),
        lambda study: study.render("wt-table4", recorded=True),
        lambda study: study.claims(recorded=True),
        lambda study: study.notebooks(refresh=True),
        lambda study: study.keep_record(),
        lambda study: reproduce(study.profile, "ev-table1", recorded=True),
    ],
    ids=["table", "audit-table", "claims", "refresh", "record", "hac"],
)
def test_the_recorded_run_is_not_shown_for_other_settings(ask) -> None:
    with pytest.raises(BadInput, match="the recorded run has the settings as shipped, asked for: Profile mini, settings CHANGED"):
        ask(Study(load_profile("mini", CHANGED)))


@pytest.mark.parametrize("name", list(load_tables()))
def test_every_table_and_figure_of_the_recorded_run_is_rendered(name: str, outputs: Path) -> None:
    """`vdr table` of what a part's own command makes ended in a traceback."""
    said = Study(load_profile("mini")).render(name, recorded=True)
    made = {path.name.split(".")[0].removesuffix("-simulated") for path in (outputs / "mini" / "from-recorded").rglob("*.*")}
    assert name in made or f"{name}-annotators" in made
    assert "Profile mini" in said


def test_every_table_says_its_settings() -> None:
    table = find_table("table1")
    assert notes_of(load_profile("smoke"), table)[0].startswith("Profile smoke, settings as shipped: ")
    changed = load_profile("smoke", CHANGED)
    assert notes_of(changed, table)[0].startswith("Profile smoke, settings CHANGED: training.learning_rate = 0.05")
    from vdr.compression.reproduce import _notes

    assert _notes(changed)[0].startswith("Profile smoke, settings CHANGED: training.learning_rate = 0.05")


# -- plans ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", load_tables())
def test_a_plan_covers_every_target(name: str) -> None:
    lines = Study(load_profile("mini")).plan(name)
    assert any(line.startswith("to run") for line in lines)
    assert "0 cached" in lines[-2] and " to run; these took " in lines[-2] and "of disk" in lines[-2]
    assert "GB of disk" in lines[-1] and "are free" in lines[-1]


@pytest.mark.parametrize("profile", profile_names())
def test_ev_tables_need_the_miner_only_where_it_is_shown(profile: str) -> None:
    # A revision that is not pinned is refused, so the weights that ship stand in; no step is made.
    study = Study(load_profile(profile, ["models.backbone=vdr:mini-backbone"]))
    for name in (table for table in load_tables() if table.startswith("ev-") and table != "ev-table6"):
        stages = {step.label for step in order(*steps_of(study.profile, [name], study.steps).values()) if step.stage == "vectors"}
        assert ("miner" in stages) == (name == "ev-table18" and "miner" in study.profile.compression.transfer)


def test_a_finished_miner_is_refused_as_an_encoder() -> None:
    profile = load_profile("pilot", ["compression.transfer=[student, miner]", "models.backbone=vdr:mini-backbone"])
    with pytest.raises(BadInput, match=r"compression.transfer: the finished miner's vectors tell no page positions.*leave miner out"):
        steps_of(profile, ["ev-table18"])
