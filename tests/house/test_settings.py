"""Profiles and the catalogue: what is wrong is said in one line with file, field and the nearest names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from vdr.errors import BadInput
from vdr.manifests import load_manifests
from vdr.study.base import Section
from vdr.study.catalogue import load_arms, load_claims, load_recipes, load_suites, load_tables
from vdr.study.settings import load_profile, profile_names
from vdr.study.yaml_io import merge, read_yaml, settable_paths


def test_every_profile_that_ships_is_whole() -> None:
    assert {"mini", "smoke", "pilot", "paper"} <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.outputs.name == name
        assert set(profile.suites) <= set(load_suites())
        assert profile.recipe in load_recipes()
        assert profile.models.miner.seed not in profile.seeds


def test_a_profile_extends_another_and_overrides_come_last() -> None:
    mini, smoke = load_profile("mini"), load_profile("smoke", ["seeds=[7, 8]", "hardware.disk_gb=3"])
    assert smoke.models == mini.models
    assert smoke.seeds == (7, 8)
    assert smoke.hardware.disk_gb == 3
    assert smoke.hardware.device == mini.hardware.device


def test_a_profile_can_be_any_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: mini\nseeds: [5]\n")
    profile = load_profile(str(path))
    assert (profile.name, profile.seeds) == ("mine", (5,))


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("mni", [], r"unknown profile 'mni'; did you mean 'mini'"),
        ("mini", ["hardware.procesess=2"], r"unknown setting 'hardware.procesess'; did you mean 'hardware.processes'"),
        ("mini", ["processes=2"], r"did you mean 'hardware.processes'"),
        ("mini", ["hardwear.processes=2"], r"did you mean 'hardware.processes'"),
        ("mini", ["name=other"], r"unknown setting 'name'"),
        ("mini", ["hardware.processes"], r"is not section.field=value"),
        ("mini", ["hardware.processes=[1"], r"--set hardware.processes: not YAML"),
        ("mini", ["hardware.processes=0"], r"hardware.processes: .*greater than or equal to 1 \(given: 0\)"),
        ("mini", ["hardware.processes=two"], r"hardware.processes: write a whole number \(given: 'two'\)"),
        ("mini", ["hardware.processes=1.5"], r"hardware.processes: .*integer.* \(given: 1.5\)"),
        ("mini", ["training.learning_rate=yes"], r"--set training.learning_rate: 'yes' means different things .*; write true"),
        ("mini", ["training.learning_rate=true"], r"training.learning_rate: write a number \(given: True\)"),
        ("mini", ["training.learning_rate='0.1'"], r"training.learning_rate: write a number \(given: '0.1'\)"),
        ("mini", ["training.learning_rate=1:30"], r"'1:30' means different things"),
        ("mini", ["training.learning_rate=.inf"], r"training.learning_rate: .*finite"),
        ("mini", ["hardware.threads=02"], r"'02' means different things .*leading zeros"),
        ("mini", ["hardware.threads=0x2"], r"'0x2' means different things .*decimal digits"),
        ("mini", ["hardware.threads=1_0"], r"'1_0' means different things .*without underscores"),
        ("mini", ["evaluation.cross_check=off"], r"'off' means different things .*; write false"),
        ("mini", ["evaluation.cross_check=1"], r"evaluation.cross_check: write true or false \(given: 1\)"),
        ("mini", ["seeds=[true]"], r"seeds: write a whole number"),
        ("mini", ["seeds=[1, 2020-01-01]"], r"'2020-01-01' means different things"),
        ("mini", ["hardware.device=tpu"], r"hardware.device: "),
        ("mini", ["seeds=[0, 0]"], r"seeds are distinct"),
        ("mini", ["seeds=[]"], r"seeds"),
        ("mini", ["training.learning_rate=.nan"], r"training.learning_rate"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(name: str, overrides: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        load_profile(name, overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: mini\nhardwear: {}\n", r"unknown field 'hardwear'; did you mean 'hardware'"),
        ("extends: mini\nhardware: {threads: 1, threads: 2}\n", r"mine.yaml:2: .*'threads' is given twice"),
        ("extends: nowhere\n", r"unknown profile 'nowhere'"),
        ("seeds: [0]\n", r"field 'title' is missing"),
        ("- a\n- b\n", r"not a mapping"),
        ("a: [\n", r"mine.yaml:2: not YAML"),
        ("extends: mini\ntraining:\n  learning_rate: on\n", r"mine.yaml:3: 'on' means different things"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said) as caught:
        load_profile(str(path))
    assert "\n" not in str(caught.value)


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: mini\ntitle: 'yes'\ntraining: {learning_rate: 1e-4}\n")
    profile = load_profile(str(path), ["hardware.threads=+2"])
    assert (profile.title, profile.training.learning_rate, profile.hardware.threads) == ("yes", 1e-4, 2)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", "folder"])
def test_a_profile_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "mine.yaml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    said = {None: "no such file", "folder": "this is a folder"}.get(content, "not UTF-8")
    with pytest.raises(BadInput, match=f"mine.yaml: {said}"):
        load_profile(str(path))


def test_profiles_in_a_circle_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"extends: {two}\n")
    two.write_text(f"extends: {one}\n")
    with pytest.raises(BadInput, match="circle"):
        load_profile(str(one))


def test_a_seed_that_the_profile_lacks_is_refused() -> None:
    with pytest.raises(BadInput, match=r"profile mini has no seed 9; known: 0, 1, 2"):
        load_profile("mini").seed(9)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_profile("mini").hardware.processes = 3


class Inner(Section):
    x: int = Field(1, ge=0)


class Outer(Section):
    inner: Inner = Field(default_factory=Inner)
    y: str = "a"


def test_paths_and_merge() -> None:
    assert settable_paths(Outer) == ["inner.x", "y"]
    assert merge({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}}) == {"a": {"b": 1, "c": [2]}, "d": 1}


def test_table_1_has_the_papers_arms_and_settings() -> None:
    table, arms = load_tables()["wt-table1"], load_arms()
    assert set(table.arms) == {"baseline", "N", "S", "A", "D"}
    for arm in arms.values():
        assert arm.losses.infonce.temperature == 0.02  # WT App. E: the same for every arm
    assert arms["S"].losses.score.weight == 1.0
    assert (arms["S"].losses.score.teacher_temperature, arms["S"].losses.score.student_temperature) == (0.02, 0.02)
    assert arms["A"].losses.attention.weight == 0.1
    assert (arms["D"].losses.description.weight, arms["D"].losses.description.temperature) == (0.2, 0.05)
    assert arms["N"].negatives.below == 0.5
    assert arms["N"].negatives.count == arms["S"].targets.count == 4


def test_an_arms_parts_fit_together() -> None:
    for arm in load_arms().values():
        assert (arm.losses.score is None) == (arm.targets is None), arm.name
        assert (arm.losses.attention is None) == (not arm.maps), arm.name
        assert (arm.losses.description is None) == (not arm.descriptions), arm.name
        assert arm.ratings == "teacher" or "oracle" in arm.name  # ratings by the truth say so in their name


def test_controls_differ_from_their_arm_in_one_thing() -> None:
    arms = load_arms()
    for name in ("S-flat", "S-masked", "S-partition"):
        assert arms[name].losses == arms["S"].losses
        assert arms[name].targets.count == arms["S"].targets.count
    assert arms["S-lambda-0.576"].supervision == arms["S"].supervision
    assert [arms[n].negatives.count for n in ("N-mined", "N-rank", "N-band", "N-perc-0.95", "N-perc-matched")] == [
        4
    ] * 5
    windows = [(arms[n].negatives.first, arms[n].negatives.last) for n in ("N-mined", "N-rank", "N-band")]
    assert windows == [(1, 4), (4, 20), (21, 100)]  # WT Table 2


def test_claims_refer_to_what_is_declared() -> None:
    assert load_claims()
    for claim in load_claims().values():
        assert claim.check.arm in load_tables()[claim.table].arms
        assert (claim.check.kind == "change_sign") == (claim.check.sign is not None)
        assert (claim.check.kind == "change_order") == (claim.check.above is not None)


@pytest.mark.parametrize(
    ("loader", "text", "said"),
    [
        (load_arms, "x: {title: t, summary: s, source: p, baseline: y}\n", r"unknown arm 'y'"),
        (load_arms, "x: {title: t, summary: s, source: p, negatives: {rule: luck}}\n", r"x: negatives"),
        (
            load_arms,
            "x: {title: t, summary: s, source: p, baseline: x, negatives: {rule: ranks, first: 1, last: 3}}\n",
            r"hold fewer than 4",
        ),
        (load_arms, "x: {title: t, summary: s, source: p, baseline: x, ratings: oracle}\n", r"rules read ratings"),
        (load_arms, "x: 3\n", r"'x' is not a mapping"),
        (load_recipes, "x: {epochs: 0}\n", r"x: epochs"),
        (load_tables, "t: {paper: WT, number: '1', title: t, arms: [Z]}\n", r"unknown arm 'Z'"),
        (load_suites, "s: {title: t, paper_suite: p, in_domain: maybe}\n", r"s: in_domain"),
    ],
)
def test_a_wrong_entry_is_one_clear_line(tmp_path: Path, loader, text: str, said: str) -> None:
    path = tmp_path / "entries.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=said) as caught:
        loader(path)
    assert "\n" not in str(caught.value)


def test_yaml_of_the_study_says_nothing_twice() -> None:
    for path in Path(__file__).parents[2].glob("src/vdr/study/**/*.yaml"):
        read_yaml(path)


def test_hub_data_sets_are_pinned_as_the_manifests_say() -> None:
    manifests = {manifest.id: manifest for manifest in load_manifests().values()}
    for name in ("pilot", "paper"):
        corpus = load_profile(name).corpus
        assert corpus.train.id in manifests
        for data in corpus.hub_datasets:
            assert data.revision is not None
            assert data.revision == manifests[data.id].revision, data.name


def test_a_childs_profile_keeps_the_order_of_the_corpus_sources(tmp_path, monkeypatch) -> None:
    """A sorted copy drew another corpus under the same key: sources and condition sets are drawn in the order they are listed."""
    from vdr.pipeline import Study

    monkeypatch.setenv("VDR_OUTPUTS", str(tmp_path))
    study = Study(load_profile("mini"))
    child = load_profile(list(study._profile_arguments())[1])
    parent = study.profile.corpus
    assert (
        list(child.corpus.sources)
        == list(parent.sources)
        == ["DocVQA", "TAT-DQA", "PDF", "arXiv-QA", "Infographic-VQA"]
    )
    for name, source in parent.sources.items():
        assert list(child.corpus.sources[name].specificity) == list(source.specificity)
    for mine, theirs in zip(parent.datasets, child.corpus.datasets, strict=True):
        assert list(mine.specificity) == list(theirs.specificity)
