"""Locks, environment.yml, Makefile, containers and set-up say the same things."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from vdr.pipeline import make_targets

ROOT = Path(__file__).parents[2]
CPU, TORCH, GPU = (ROOT / "requirements" / name for name in ("cpu.txt", "torch-cpu.txt", "gpu.txt"))
# What vLLM's own requirements dictate on a GPU node; said in environment.yml too.
MAY_DIFFER = {"torch", "numpy"}


def locked(path: Path) -> dict[str, str]:
    """Package → version; every entry must carry hashes."""
    text = path.read_text()
    pins = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        found = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]+\])?==(\S+)", entry)
        if found:
            assert "--hash=sha256:" in entry, f"{path.name}: {found[1]} has no hash"
            pins[canonicalize_name(found[1])] = found[2]
    return pins


def conda_pins() -> dict[str, str]:
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(item["pip"] for item in content["dependencies"] if isinstance(item, dict))
    return {canonicalize_name(name): version for name, version in (item.split("==") for item in pip)}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_yml_agrees_with_the_locks() -> None:
    gpu, cpu = locked(GPU), locked(CPU) | locked(TORCH)
    for name, version in conda_pins().items():
        assert gpu[name] == version, name
        if name in cpu and name not in MAY_DIFFER:
            assert cpu[name] == version, name


def test_environment_yml_names_what_the_studys_card_asks_for() -> None:
    asked = {"jupyterlab", "papermill", "torch", "transformers", "peft", "vllm", "datasets"}
    asked |= {"matplotlib", "seaborn", "pandas", "nbval", "pytest"}
    assert asked <= set(conda_pins())
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert "python=3.11" in content["dependencies"]


def test_every_declared_dependency_is_locked_at_a_version_that_fits() -> None:
    cpu, gpu = locked(CPU) | locked(TORCH), locked(GPU)
    declared = [Requirement(text) for text in project()["dependencies"]]
    extras = project()["optional-dependencies"]
    dev = [Requirement(text) for text in extras["dev"] + extras["index"]]
    for requirement in declared + dev:
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(Version(cpu[name]), prereleases=True), requirement
        if requirement in declared:
            assert requirement.specifier.contains(Version(gpu[name]), prereleases=True), requirement
    for text in project()["optional-dependencies"]["vllm"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(Version(gpu[canonicalize_name(requirement.name)]))


def test_the_cpu_lock_brings_no_cuda() -> None:
    pins = locked(CPU)
    assert "torch" not in pins
    assert not [name for name in pins if name.startswith("nvidia-") or name == "triton"]
    assert locked(TORCH)["torch"].endswith("+cpu")


def test_this_environment_is_the_locked_one() -> None:
    from importlib.metadata import PackageNotFoundError, version

    other = {}
    for name, pin in (locked(CPU) | locked(TORCH)).items():
        try:
            if version(name) != pin:
                other[name] = version(name)
        except PackageNotFoundError:
            other[name] = "absent"
    if other and not os.environ.get("CI"):
        pytest.skip(f"made by hand, differs in {len(other)} packages: {sorted(other)[:5]}")
    assert other == {}


def run_make(*arguments: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("no make here")
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_lists_every_target_with_a_line() -> None:
    targets = set()
    for name in ("Makefile", "tables.mk"):
        for line in (ROOT / name).read_text().splitlines():
            found = re.match(r"([A-Za-z0-9_.-]+)\s*:(?!=)", line)
            if found and not found[1].startswith("."):
                targets.add(found[1])
    said = {}
    for line in run_make("help").splitlines()[1:]:
        name, _, text = line.strip().partition(" ")
        said[name] = text.strip()
    assert set(said) == targets
    assert all(len(text) > 10 for text in said.values())


def test_targets_of_tables_are_up_to_date() -> None:
    assert (ROOT / "tables.mk").read_text() == make_targets(), "say `make targets`"


@pytest.mark.parametrize("target", ["reproduce-table1", "test", "setup", "lint", "plan", "table1"])
def test_targets_begin_with_the_set_up(target: str) -> None:
    commands = run_make("--dry-run", target).splitlines()
    assert commands[0] == "scripts/setup.sh"


def test_containers_install_from_the_locks_on_a_base_by_digest() -> None:
    for name, lock in (("cpu", "cpu.txt"), ("gpu", "gpu.txt")):
        text = (ROOT / "containers" / f"{name}.Dockerfile").read_text()
        assert re.search(r"^ARG BASE$", text, re.M)
        assert re.search(r"^FROM \$\{BASE\}$", text, re.M)
        assert "@sha256:" in text
        assert "--require-hashes" in text
        assert f"requirements/{lock}" in text


def setup(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The set-up script in a copy of what it reads, so that it cannot touch this environment."""
    for name in ("scripts/setup.sh", "pyproject.toml", "requirements/cpu.txt", "requirements/torch-cpu.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=folder, env={**os.environ, "VENV": ".venv", **environment}, capture_output=True, text=True
    )


def test_a_wrong_python_is_told_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "python3.9"
    other.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    other.chmod(0o755)
    done = setup(tmp_path, PYTHON=str(other))
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert "Python 3.11" in done.stderr
    assert "Python 3.9.1" in done.stderr


def test_no_python_is_told_in_one_line(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cut", "sha256sum", "uname", "dirname", "df", "awk", "mktemp"):
        (tools / name).symlink_to(shutil.which(name))
    done = setup(tmp_path, PATH=str(tools), PYTHON="")
    assert done.returncode == 5
    assert done.stderr.splitlines() == [
        "unfit machine: Python 3.11 is needed and was not found; install it or name it with PYTHON=/path/to/python3.11"
    ]


def test_no_space_is_told_in_one_line(tmp_path: Path) -> None:
    done = setup(tmp_path, PYTHON=sys.executable, VDR_NEEDED_MB="999999999")
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert "MB free" in done.stderr


def test_a_second_set_up_spends_no_time(tmp_path: Path) -> None:
    setup(tmp_path, VDR_NEEDED_MB="999999999")  # lays the files; refuses to go on
    stamp = subprocess.run(
        "cat requirements/torch-cpu.txt requirements/cpu.txt pyproject.toml scripts/setup.sh | sha256sum | cut -c1-20",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout.strip()
    made = tmp_path / ".venv" / "bin" / "vdr"
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    (tmp_path / ".venv" / f".made-{stamp}").touch()
    assert setup(tmp_path, VDR_NEEDED_MB="999999999").returncode == 0
    (tmp_path / "requirements" / "cpu.txt").write_text("# another lock\n")
    again = subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=tmp_path, env={**os.environ, "VDR_NEEDED_MB": "999999999"}, capture_output=True, text=True
    )
    assert again.returncode == 5  # another lock: it would make the environment anew
