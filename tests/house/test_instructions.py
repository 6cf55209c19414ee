"""One instruction level for all results: set before libraries load, noted, part of a key where it is another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vdr import instructions
from vdr.errors import BadInput, UnfitMachine
from vdr.store import Store

OURS = (*instructions.SWITCHES, *instructions.UNSET, instructions.VARIABLE)
HERE = {name: value for name, value in os.environ.items() if name not in OURS}
WIDE = pytest.mark.skipif("x86-64-v4" not in instructions.runnable(), reason="this processor has nothing above the declared level")
ASK = """
{imports}
import numpy, torch
from numpy._core._multiarray_umath import __cpu_features__
print(torch.backends.cpu.get_cpu_capability(), __cpu_features__["X86_V4"])
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=HERE | environment, capture_output=True, text=True, check=True)


@WIDE
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "AVX2 False"),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, "AVX2 False"),
        ({instructions.VARIABLE: "native"}, "AVX512 True"),
        ({instructions.VARIABLE: "native", **instructions.SWITCHES}, "AVX512 True"),
    ],
)
def test_libraries_are_held_to_the_level_in_force(environment, said):
    done = python(ASK.format(imports="import vdr"), **environment)
    assert done.stdout.strip() == said
    assert done.stderr == ""


def test_the_users_own_mkl_branch_does_not_change_bytes():
    """MKL_CBWR rounds batched products otherwise, which gave arm A other weights than the recorded ones."""
    ask = "import os, vdr\nprint(os.environ.get('MKL_CBWR'))"
    assert python(ask, MKL_CBWR="AVX2").stdout.strip() == "None"
    assert python(ask, MKL_CBWR="AVX2", **{instructions.VARIABLE: "native"}).stdout.strip() == "AVX2"


@WIDE
def test_a_library_that_was_loaded_too_early_is_told():
    code = "import numpy, vdr.hardware\nfrom vdr.study.sections.hardware import HardwareSettings\n"
    code += "try:\n    vdr.hardware.prepare(HardwareSettings())\nexcept vdr.errors.BadInput as error:\n    print(error)"
    assert "numpy had been loaded before vdr" in python(code).stdout


def test_tests_run_at_the_declared_level():
    instructions.check(instructions.DECLARED)


def test_a_processor_below_the_level_is_unfit(monkeypatch):
    monkeypatch.setattr(instructions, "_flags", lambda: instructions.LEVELS["x86-64-v2"])
    assert instructions.runnable() == ("x86-64-v2",)
    with pytest.raises(UnfitMachine, match=r"x86-64-v3, which this processor cannot run \(avx, avx2"):
        instructions.check(instructions.DECLARED)


def test_another_level_has_another_key(monkeypatch):
    declared = Store(Path()).key("stage", {"a": 1}, {})
    monkeypatch.setenv(instructions.VARIABLE, "native")
    assert Store(Path()).key("stage", {"a": 1}, {}) != declared
    monkeypatch.setenv(instructions.VARIABLE, instructions.DECLARED)
    assert Store(Path()).key("stage", {"a": 1}, {}) == declared


def test_a_word_that_is_no_level_is_refused(monkeypatch):
    monkeypatch.setenv(instructions.VARIABLE, "avx9")
    with pytest.raises(BadInput, match="'avx9' is no instruction level"):
        instructions.in_force()


def test_a_notebook_is_told_how_to_start_at_another_level(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py"])
    with pytest.raises(BadInput, match="VDR_INSTRUCTIONS=native"):
        instructions.require("native")


def test_a_command_starts_anew_at_the_profiles_level(tmp_path):
    command = [sys.executable, "-m", "vdr.cli", "trace", "baseline", "v1", "-p", "smoke", "--set", "hardware.instructions=native"]
    done = subprocess.run(command, env=HERE | {"VDR_OUTPUTS": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)  # nothing was run yet, and that is all it says
    assert 'not run: Profile smoke, settings CHANGED: hardware.instructions = "native"' in done.stderr
