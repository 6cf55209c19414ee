"""The whole study at the smallest size: from nothing to Table 1; killed on the way and repeated, it gives the same bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vdr.models.weights import ASSETS
from vdr.store import stable_manifest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ASSETS / "mini-teacher").exists(), reason="the miniature's weights are not in this checkout"),
]
REPRODUCE = ["reproduce", "table1", "--profile", "smoke"]


def start(outputs: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vdr.cli", *arguments],
        env={**os.environ, "VDR_OUTPUTS": str(outputs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def vdr(outputs: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(outputs, *arguments)
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    outputs = tmp_path_factory.mktemp("undisturbed")
    status, out, err = vdr(outputs, *REPRODUCE)
    assert status == 0, err
    return outputs, out


def manifests(outputs: Path) -> dict[str, dict]:
    found = {}
    for path in sorted((outputs / "smoke" / "artefacts").glob("*/*/manifest.json")):
        assert not path.parent.name.startswith("."), f"{path.parent} was left half done"
        found[path.parent.relative_to(outputs).as_posix()] = stable_manifest(json.loads(path.read_text()))
    return found


def results(outputs: Path) -> dict[str, bytes]:
    """Tables and the record's run files; figures are left out, their bytes are the drawing library's affair."""
    smoke = outputs / "smoke"
    paths = [*(smoke / "tables").glob("*.csv"), *(smoke / "record").rglob("*.trec.gz")]
    return {path.relative_to(outputs).as_posix(): path.read_bytes() for path in paths}


def test_table_1_is_printed_and_written(undisturbed: tuple[Path, str]) -> None:
    outputs, said = undisturbed
    for arm in ("baseline", "N", "S", "D", "A"):
        assert re.search(rf"^\W*{arm}\b", said, re.M), said
    for name in ("wt-table1.csv", "wt-table1.md", "wt-table1.html"):
        assert (outputs / "smoke" / "tables" / name).stat().st_size > 0
    header = (outputs / "smoke" / "tables" / "wt-table1.csv").read_text().splitlines()[0].split(",")
    for column in ("arm", "suite", "seed_0", "mean", "change", "verdict", "paper_mean", "paper_change", "paper_verdict"):
        assert column in header
    assert list((outputs / "smoke" / "figures").glob("wt-table1*"))
    assert list((outputs / "smoke" / "notebooks").glob("*table1.ipynb"))


def test_every_run_left_its_measures(undisturbed: tuple[Path, str]) -> None:
    outputs, _ = undisturbed
    made = manifests(outputs)
    checkpoints = [manifest for manifest in made.values() if manifest["stage"] == "checkpoint"]
    assert len(checkpoints) == 5
    for manifest in checkpoints:
        assert "loss.csv" in manifest["files"]
        raw = json.loads((outputs / "smoke" / "artefacts" / "checkpoint").joinpath(
            f"{manifest['label']}-{manifest['key'][:16]}", "manifest.json").read_text())
        assert raw["peak_memory_mb"] > 0
        assert raw["measures"]["timing"]


def test_a_second_run_makes_nothing_and_prints_the_same(undisturbed: tuple[Path, str]) -> None:
    outputs, said = undisturbed
    before = {path: path.stat().st_mtime_ns for path in (outputs / "smoke" / "artefacts").rglob("manifest.json")}
    status, again, _ = vdr(outputs, *REPRODUCE)
    assert status == 0
    assert again == said
    assert before == {path: path.stat().st_mtime_ns for path in (outputs / "smoke" / "artefacts").rglob("manifest.json")}
    status, plan, _ = vdr(outputs, "plan", "table1", "--profile", "smoke")
    assert status == 0
    assert re.search(r"^\d+ cached, 0 to run$", plan, re.M)


def test_trace_leads_from_a_cell_to_the_files_behind_it(undisturbed: tuple[Path, str]) -> None:
    outputs, _ = undisturbed
    status, said, _ = vdr(outputs, "trace", "N", "v2", "--profile", "smoke")
    assert status == 0
    for stage in ("run file", "checkpoint", "rows", "ratings", "pools", "corpus"):
        assert re.search(rf"^\s+{stage}\s", said, re.M), said
    places = re.findall(r"^\s+(?:run file|[a-z-]+)\s+(\S+)$", said, re.M)
    assert places
    assert all(Path(place).exists() for place in places)


def kill_when(outputs: Path, ready) -> None:
    """Start the run and kill it, whole group and all, as soon as `ready()`."""
    process = start(outputs, *REPRODUCE)
    deadline = time.monotonic() + 600
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    # The runs are in sessions of their own and end with their parent.
    time.sleep(0.5)


def test_killed_again_and_again_it_ends_with_the_same_bytes(undisturbed: tuple[Path, str], tmp_path: Path) -> None:
    whole, _ = undisturbed
    store = tmp_path / "smoke" / "artefacts"
    kill_when(tmp_path, lambda: list(store.glob("corpus/.tmp-*/train/*")))
    kill_when(tmp_path, lambda: list(store.glob("ratings/.tmp-*/partial/*.parquet")) or list(store.glob("ratings/*/manifest.json")))
    # Here one run is finished, and another is in training and has left a checkpoint to go on from.
    kill_when(tmp_path, lambda: list(store.glob("run/*/manifest.json")) and list(store.glob("checkpoint/.tmp-*/partial/*")))
    status, _, err = vdr(tmp_path, *REPRODUCE)
    assert status == 0, err
    assert manifests(tmp_path) == manifests(whole)
    assert results(tmp_path) == results(whole)


def test_a_damaged_artefact_is_refused_and_earlier_results_stay(undisturbed: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(undisturbed[0], tmp_path, dirs_exist_ok=True)
    before = results(tmp_path)
    victim = next((tmp_path / "smoke" / "artefacts").glob("run/N-*/v2/*.trec.gz"))
    victim.write_bytes(victim.read_bytes()[:-10])
    status, out, err = vdr(tmp_path, *REPRODUCE)
    assert status == 3
    assert victim.name in err
    assert "bytes, the manifest says" in err
    assert out == ""
    assert results(tmp_path) == before
