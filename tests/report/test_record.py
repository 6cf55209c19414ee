"""Records: complete, small, verified, and the same for the same run."""

from __future__ import annotations

import fcntl
import json
import shutil

import pytest

from vdr.errors import BadInput, Busy, DamagedArtefact
from vdr.evaluation.evaluate import load_scores
from vdr.report.collect import copy_record
from vdr.report.record import fingerprint, open_record


def test_a_record_holds_runs_qrels_manifests_and_small_reports(study):
    record = study.record
    assert len(record.runs) == 15
    files = set(record.meta["files"])
    assert "runs/N/seed-1/v2/forms.trec.gz" in files
    assert "qrels/jina/forms.tsv.gz" in files
    assert len(record.stages("checkpoint")) == 15
    assert record.json("corpus", "report.json") == {"pages": 80}
    assert record.file("checkpoint", "loss.csv", "N-seed-0").read_text().startswith("step,loss")
    assert not any(name.endswith((".parquet", "large.csv")) for name in files)
    assert any("Hardware" in note for note in record.notes)
    assert "Seeds: 0, 1, 2 for every arm." in record.notes
    assert str(study.root) not in (record.root / "record.json").read_text()


def test_scores_come_from_the_run_files_and_equal_the_evaluations(study):
    scores = study.record.scores()
    assert len(scores) == 15 * 4
    for row in scores.itertuples(index=False):
        expected = load_scores(study.runs[(row.arm, row.seed)].path)["suites"][row.suite]["ndcg_at_5"]
        assert row.value == pytest.approx(expected, abs=1e-9)
    sets = study.record.datasets()
    assert len(sets) == 15 * 4
    assert set(sets[sets["suite"] == "v1"]["in_domain"]) == {True}


def test_every_run_names_everything_upstream(study):
    run = next(r for r in study.record.runs if (r.arm, r.seed) == ("S", 2))
    assert run.key == study.runs[("S", 2)].key
    assert set(run.pedigree) == {"corpus", "checkpoint"}
    checkpoint = study.store.artefacts("checkpoint")
    assert run.pedigree["checkpoint"][0]["key"] in {a.key for a in checkpoint if a.label == "S-seed-2"}


def test_a_missing_ancestor_stops_the_record_and_leaves_the_old_one(study, tmp_path):
    shutil.copytree(study.root, tmp_path / "study")
    from vdr.store import Store

    store = Store(tmp_path / "study" / "artefacts")
    runs = {(a.manifest["config"]["arm"], a.manifest["config"]["seed"]): a for a in store.artefacts("run")}
    before = (tmp_path / "study" / "record" / "record.json").read_bytes()
    shutil.rmtree(store.artefacts("corpus")[0].path)
    with pytest.raises(DamagedArtefact, match="manifest"):
        study.record_of(tmp_path / "study" / "record", store, runs)
    assert (tmp_path / "study" / "record" / "record.json").read_bytes() == before
    assert [p.name for p in (tmp_path / "study").iterdir() if p.name.startswith(".record")] == [".record.lock"]


def test_recording_twice_gives_the_same_bytes(study, tmp_path):
    again = study.record_of(tmp_path / "record", study.store, study.runs)
    assert again.meta == study.record.meta
    assert fingerprint(again) == fingerprint(study.record)
    for name in again.meta["files"]:
        assert (again.root / name).read_bytes() == (study.record.root / name).read_bytes()


def test_copying_verifies_replaces_the_record_and_leaves_the_rest(study, tmp_path):
    (tmp_path / "mini" / "runs").mkdir(parents=True)
    (tmp_path / "mini" / "runs" / "stale.txt").write_text("old")
    (tmp_path / "mini" / "other").mkdir()
    (tmp_path / "mini" / "other" / "kept.txt").write_text("of another study")
    copied = copy_record(study.record.root, tmp_path / "mini")
    assert copied.meta == study.record.meta
    assert not (tmp_path / "mini" / "runs" / "stale.txt").exists()
    assert (tmp_path / "mini" / "other" / "kept.txt").read_text() == "of another study"


def test_changed_missing_and_forged_files_are_found(study, tmp_path):
    root = copy_record(study.record.root, tmp_path / "mini").root
    file = root / "runs/N/seed-0/v1/forms.trec.gz"
    good = file.read_bytes()
    file.write_bytes(good + b"x")
    with pytest.raises(DamagedArtefact, match=r"forms\.trec\.gz: differs"):
        open_record(root)
    file.unlink()
    with pytest.raises(DamagedArtefact, match="missing"):
        open_record(root)
    file.write_bytes(good)
    scores = json.loads((root / "runs/N/seed-0/scores.json").read_text())
    scores["suites"]["v1"]["ndcg_at_5"] += 3.0  # a number that its run files do not give
    (root / "runs/N/seed-0/scores.json").write_text(json.dumps(scores))
    with pytest.raises(DamagedArtefact, match=r"run files give .* on v1, scores\.json says"):
        open_record(root, verify=False).scores()


def test_no_runs_no_record_and_a_depth_below_the_cutoff_are_refused(study, tmp_path):
    with pytest.raises(BadInput, match="no runs"):
        study.record_of(tmp_path / "r", study.store, {})
    with pytest.raises(BadInput, match="below the metric's cutoff"):
        study.record_of(tmp_path / "r", study.store, study.runs, depth=3)
    assert not (tmp_path / "r").exists()
    with pytest.raises(BadInput, match="no record here"):
        open_record(tmp_path / "r")
    with pytest.raises(BadInput, match=r"0 files 'none\.json'"):
        study.record.file("corpus", "none.json")


def test_a_second_writer_is_told_so(study, tmp_path):
    with (tmp_path / ".record.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="another process"):
            study.record_of(tmp_path / "record", study.store, study.runs)
    study.record_of(tmp_path / "record", study.store, study.runs)
    assert not (tmp_path / ".record.new").exists()
