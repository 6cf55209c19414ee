"""The store: complete or absent, resumed after a kill, refused when damaged, one writer, full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from vdr.errors import BadInput, Busy, DamagedArtefact, NoSpace
from vdr.store import Store, canonical_json, load_artefact, stable_manifest


def write(text: str):
    def build(out: Path, measures: dict) -> None:
        (out / "value.txt").write_text(text)
        measures["length"] = len(text)
        measures["timing"] = {"seconds": time.time()}

    return build


def never(out: Path, measures: dict) -> None:
    raise AssertionError("built although it was there")


def test_make_once_then_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.make("corpus", {"seed": 1}, {}, write("a"), label="train")
    assert first.path.name == f"train-{first.key[:16]}"
    again = store.make("corpus", {"seed": 1}, {}, never, label="train")
    assert again.key == first.key
    assert again.measures["length"] == 1
    assert store.find("corpus", {"seed": 2}, {}) is None
    # A label is for people: the result is found under another one too.
    assert store.make("corpus", {"seed": 1}, {}, never, label="renamed").path == first.path


def test_key_depends_on_stage_version_config_and_history(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = store.make("corpus", {"seed": 1}, {}, write("a"))
    two = store.make("corpus", {"seed": 2}, {}, write("a"))
    keys = {
        store.key("pools", {}, {"corpus": one}),
        store.key("pools", {}, {"corpus": two}),
        store.key("pools", {}, {"corpus": [one]}),
        store.key("pools", {"depth": 1}, {"corpus": one}),
        store.key("pools", {}, {"corpus": one}, version=2),
        store.key("rows", {}, {"corpus": one}),
    }
    assert len(keys) == 6
    assert store.key("x", {"a": 1, "b": 2}, {}) == store.key("x", {"b": 2, "a": 1}, {})


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_configuration_must_be_plain(value: object) -> None:
    with pytest.raises(BadInput, match="plain data"):
        canonical_json({"x": value})


def test_manifest_says_where_it_comes_from(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = store.make("corpus", {"seed": 1}, {}, write("a"))
    two = store.make("pools", {"depth": 5}, {"corpus": one}, write("bc"))
    manifest = json.loads((two.path / "manifest.json").read_text())
    assert manifest["inputs"] == {"corpus": one.key}
    assert (tmp_path / manifest["input_paths"]["corpus"]).samefile(one.path)
    assert manifest["files"]["value.txt"]["bytes"] == 2
    for name in ("code", "packages", "hardware", "seconds", "peak_memory_mb", "started", "finished"):
        assert manifest[name] not in (None, {}, "")


def test_equal_runs_have_equal_manifests_but_for_times(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "two"):
        made.append(Store(tmp_path / folder).make("corpus", {"seed": 1}, {}, write("a")).manifest)
        time.sleep(0.01)
    assert stable_manifest(made[0]) == stable_manifest(made[1])
    assert made[0]["measures"]["timing"] != made[1]["measures"]["timing"]


@pytest.mark.parametrize("damage", ["change", "truncate", "remove", "manifest", "config", "no manifest"])
def test_damage_is_refused_with_file_and_reason(tmp_path: Path, damage: str) -> None:
    artefact = Store(tmp_path).make("corpus", {"seed": 1}, {}, write("abcdef"))
    file, manifest = artefact.path / "value.txt", artefact.path / "manifest.json"
    if damage == "change":
        file.write_text("abcdeX")
    elif damage == "truncate":
        file.write_text("abc")
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif damage == "no manifest":
        manifest.unlink()
    else:
        content = json.loads(manifest.read_text())
        content["config"]["seed"] = 2
        manifest.write_text(json.dumps(content))
    # mtime has whole nanoseconds here, but a copy that keeps it must not pass either: hashes count, not times.
    with pytest.raises(DamagedArtefact) as caught:
        Store(tmp_path).make("corpus", {"seed": 1}, {}, never)
    assert str(artefact.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_flipped_bit_of_a_manifest_goes_unseen(tmp_path: Path) -> None:
    artefact = Store(tmp_path).make("corpus", {"seed": 1}, {}, write("abcdef"))
    file = artefact.path / "manifest.json"
    whole = file.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        file.write_bytes(flipped)
        with pytest.raises(DamagedArtefact, match=r"manifest\.json"):
            load_artefact(artefact.path)


def test_a_manifest_from_before_the_seal_is_read(tmp_path: Path) -> None:
    artefact = Store(tmp_path).make("corpus", {"seed": 1}, {}, write("a"))
    file = artefact.path / "manifest.json"
    old = {name: value for name, value in json.loads(file.read_text()).items() if name != "seal"}
    file.write_text(json.dumps(old))
    with pytest.raises(DamagedArtefact, match="seal"):  # of today's format, and the seal taken off
        load_artefact(artefact.path)
    file.write_text(json.dumps({**old, "format": 1}))
    assert load_artefact(artefact.path).key == artefact.key


def test_failure_publishes_nothing_and_keeps_earlier_results(tmp_path: Path) -> None:
    store = Store(tmp_path)
    earlier = store.make("corpus", {"seed": 1}, {}, write("a"))

    def broken(out: Path, measures: dict) -> None:
        (out / "half.txt").write_text("half")
        raise ValueError("broken on purpose")

    with pytest.raises(ValueError, match="broken on purpose") as caught:
        store.make("corpus", {"seed": 2}, {}, broken, label="second")
    assert any("corpus second" in note for note in caught.value.__notes__)
    assert store.find("corpus", {"seed": 2}, {}) is None
    assert [item.key for item in store.artefacts("corpus")] == [earlier.key]


def test_what_is_refused_before_anything_was_done_leaves_nothing(tmp_path: Path) -> None:
    """Regression: a corpus with a bad setting left a half-made folder behind; what was done before stays, to go on from."""

    def refused(out: Path, measures: dict) -> None:
        raise BadInput("bad on purpose")

    def stopped(out: Path, measures: dict) -> None:
        (out / "partial" / "half.txt").write_text("half")
        raise BadInput("bad on purpose")

    for build, left in ((refused, []), (stopped, ["half.txt"])):
        with pytest.raises(BadInput):
            Store(tmp_path).make("corpus", {}, {}, build)
        assert [path.name for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(".")] == left


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file system here that makes no folders")
def test_outputs_where_no_folder_can_be_made_are_one_line() -> None:
    with pytest.raises(BadInput, match="no folder can be made here; set VDR_OUTPUTS"):
        Store(Path("/proc/none")).make("corpus", {}, {}, write("a"))


def test_a_stage_that_writes_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="wrote nothing"):
        Store(tmp_path).make("corpus", {}, {}, lambda out, measures: None)


def test_labels_cannot_leave_the_store(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no name for a directory"):
        Store(tmp_path).make("corpus", {}, {}, write("a"), label="../out")


CHILD = """
    import sys, time
    from pathlib import Path
    from vdr.store import Store

    def build(out, measures):
        shards = out / "partial"
        done = len(list(shards.glob("shard-*")))
        for i in range(done, 5):
            (shards / f"shard-{i}").write_text(f"{i}\\n")
            print("shard", i, flush=True)
            if i == int(sys.argv[2]):
                time.sleep(60)
        (out / "value.txt").write_text("".join((shards / f"shard-{i}").read_text() for i in range(5)))

    Store(Path(sys.argv[1])).make("corpus", {"seed": 1}, {}, build)
"""


def child(root: Path, stop_at: int) -> subprocess.Popen[str]:
    code = textwrap.dedent(CHILD)
    return subprocess.Popen([sys.executable, "-c", code, str(root), str(stop_at)], stdout=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == line:
            return
    raise AssertionError(f"the child ended before it said {line!r}")


def test_killed_then_repeated_gives_the_bytes_of_an_undisturbed_run(tmp_path: Path) -> None:
    undisturbed = child(tmp_path / "whole", -1)
    assert undisturbed.wait(60) == 0
    killed = child(tmp_path / "killed", 2)
    until(killed, "shard 2")
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)
    store = Store(tmp_path / "killed")
    assert store.find("corpus", {"seed": 1}, {}) is None
    assert len(store.in_work()) == 1
    repeated = child(tmp_path / "killed", -1)
    said, _ = repeated.communicate(timeout=60)
    assert repeated.returncode == 0
    assert said.split() == ["shard", "3", "shard", "4"]  # went on where it was killed
    manifests = [Store(tmp_path / name).artefacts("corpus")[0].manifest for name in ("whole", "killed")]
    assert stable_manifest(manifests[0]) == stable_manifest(manifests[1])
    assert store.in_work() == []


def test_partial_work_of_other_code_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def stop(out: Path, measures: dict) -> None:
        (out / "partial" / "shard").write_text("old")
        (out / "leftover.txt").write_text("old")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make("corpus", {}, {}, stop)
    monkeypatch.setattr("vdr.provenance.source_hash", lambda: "another")

    def build(out: Path, measures: dict) -> None:
        assert not (out / "partial" / "shard").exists()
        (out / "value.txt").write_text("new")

    assert list(store.make("corpus", {}, {}, build).manifest["files"]) == ["value.txt"]


def test_second_writer_is_told_so_and_the_first_is_unharmed(tmp_path: Path) -> None:
    first = child(tmp_path, 0)
    until(first, "shard 0")
    with pytest.raises(Busy, match=str(first.pid)):
        Store(tmp_path).make("corpus", {"seed": 1}, {}, never)
    # Another artefact of the same stage is nobody else's business.
    Store(tmp_path).make("corpus", {"seed": 2}, {}, write("b"))
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    # The kernel drops a dead writer's lock.
    assert Store(tmp_path).make("corpus", {"seed": 1}, {}, write("a")).measures["length"] == 1


@pytest.mark.parametrize("where", ["build", "fsync", "rename"])
def test_full_disk_is_one_clear_error_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store = Store(tmp_path)
    earlier = store.make("corpus", {"seed": 1}, {}, write("a"))

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def build(out: Path, measures: dict) -> None:
        (out / "value.txt").write_text("b")
        if where == "build":
            full()
        monkeypatch.setattr(os, where, full)

    with pytest.raises(NoSpace, match="disk is full"):
        store.make("corpus", {"seed": 2}, {}, build)
    monkeypatch.undo()
    assert store.find("corpus", {"seed": 2}, {}) is None
    assert load_artefact(earlier.path).measures == earlier.measures
    assert store.make("corpus", {"seed": 2}, {}, write("b")).measures["length"] == 1


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/proc/mounts").exists(), reason="mounting a small disk needs root on Linux")
def test_really_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "vdr-test", str(disk)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no mounts here: {mounted.stderr.strip()}")
    try:
        store = Store(disk)
        earlier = store.make("corpus", {"seed": 1}, {}, write("a"))

        def large(out: Path, measures: dict) -> None:
            (out / "value.bin").write_bytes(b"x" * 2**20)

        with pytest.raises(NoSpace):
            store.make("corpus", {"seed": 2}, {}, large)
        assert load_artefact(earlier.path).key == earlier.key
        assert store.find("corpus", {"seed": 2}, {}) is None
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_artefacts_made_in_one_second_keep_their_order(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.make("corpus", {}, {}, lambda out, measures: (out / "a").write_text("a"))
    second = store.make("checkpoint", {}, {"corpus": first}, lambda out, measures: (out / "b").write_text("b"))
    assert first.manifest["started"] < second.manifest["started"]
