"""The recorded bytes: what is the same, what differs first and why that may be."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from vdr.errors import BadInput
from vdr.sameness import compare_artefacts, recorded_manifests
from vdr.store import Store
from vdr.study.settings import repository_root


def made(tmp_path, name: str, text: str, **config):
    return Store(tmp_path / name).make("stage", {"size": 1, **config}, {}, lambda out, measures: (out / "a.txt").write_text(text))


def record_of(tmp_path, *artefacts):
    for artefact in artefacts:
        place = tmp_path / "record" / "stages" / "stage" / artefact.path.name
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(json.dumps(artefact.manifest))
    return recorded_manifests(tmp_path / "record")


def test_equal_files_are_the_recorded_bytes(tmp_path):
    recorded = record_of(tmp_path, made(tmp_path, "old", "one"))
    assert compare_artefacts([made(tmp_path, "new", "one")], recorded).lines() == [
        "the recorded bytes: all 1 artefacts have every file as recorded"
    ]


def test_the_first_difference_is_named_with_both_sides_and_the_likely_reason(tmp_path):
    old = made(tmp_path, "old", "one")
    manifest = json.loads(json.dumps(old.manifest))  # its own copy: what is noted of packages and hardware is shared
    manifest["hardware"] |= {"processor": "Other", "instructions": "x86-64-v3"}
    manifest["packages"]["numpy"] = "1.0"
    old = replace(old, manifest=manifest)
    lines = compare_artefacts([made(tmp_path, "new", "two")], record_of(tmp_path, old)).lines()
    assert lines[0].startswith("NOT the recorded bytes: 1 of 1 artefacts differ, first stage")
    assert lines[0].endswith("(a.txt)")
    assert "recorded  Other, x86-64-v3" in lines[2]
    assert "numpy" in lines[3] and "1.0 recorded" in lines[3]


def test_other_settings_are_not_compared(tmp_path):
    recorded = record_of(tmp_path, made(tmp_path, "old", "one"))
    assert compare_artefacts([made(tmp_path, "new", "one", width=2)], recorded).lines()[0].startswith("not comparable: 1 of 1")


def test_a_record_without_manifests_is_told(tmp_path):
    with pytest.raises(BadInput, match="no manifests of a recorded run"):
        recorded_manifests(tmp_path)


@pytest.mark.slow
def test_this_machine_gives_the_recorded_bytes(tmp_path, monkeypatch):
    """Corpus, vision cache, miner and a trained, encoded and evaluated baseline of the recorded mini run, made here."""
    if not (repository_root() / "outputs" / "recorded" / "mini" / "stages").exists():
        pytest.skip("no recorded run in this checkout")
    monkeypatch.setenv("VDR_OUTPUTS", str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "vdr.cli", "verify", "--recorded"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the recorded bytes: all" in done.stdout
