"""A place that cannot be written, or is no place at all: one line, a status, and what can be shown is shown."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from vdr.disk import disk_errors, explained, writable_or_scratch
from vdr.errors import BadInput, NoSpace, NotWritable


@pytest.mark.parametrize(
    ("number", "kind", "status"),
    [
        (errno.ENOSPC, NoSpace, 6),
        (errno.EDQUOT, NoSpace, 6),
        (errno.EROFS, NotWritable, 6),
        (errno.EACCES, NotWritable, 6),
        (errno.ENAMETOOLONG, BadInput, 2),
        (errno.ENOTDIR, BadInput, 2),
    ],
)
def test_what_the_system_refuses_is_told(number: int, kind: type, status: int, tmp_path: Path) -> None:
    with pytest.raises(kind, match=str(tmp_path)) as caught, disk_errors(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))
    assert caught.value.exit_code == status
    assert "\n" not in str(caught.value)


def test_a_refusal_that_a_library_only_quotes_is_told_too(tmp_path: Path) -> None:
    """Regression: safetensors raises an error of its own for a full disk, which ended in a traceback and status 1."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(SafetensorError, match="os error") as quoted:
            save_file({"x": np.zeros(100_000, np.float32)}, tmp_path / "x.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(NoSpace, match=str(tmp_path)), disk_errors(tmp_path):
        raise quoted.value
    assert explained(ValueError("a header of 28 bytes")) is None


def test_what_may_be_a_defect_stays_one(tmp_path: Path) -> None:
    assert explained(OSError(errno.EBADF, "bad descriptor")) is None
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path):
        (tmp_path / "nowhere").read_bytes()


def test_a_place_that_can_be_written_is_used(tmp_path: Path) -> None:
    with writable_or_scratch(tmp_path / "new") as (place, kept):
        assert (place, kept) == (tmp_path / "new", True)


def _bound_by_modes() -> None:
    """Before the program starts: give up root's right to write where a folder's mode forbids it."""
    drop_from_bounding_set, override = 24, 1
    if os.geteuid() == 0:
        assert ctypes.CDLL(None, use_errno=True).prctl(drop_from_bounding_set, override, 0, 0, 0) == 0


@pytest.fixture
def closed(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `vdr` with outputs that nobody may write to."""
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    outputs.chmod(0o555)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from vdr.cli import main; main()", *words]
        return subprocess.run(
            command, env={**os.environ, "VDR_OUTPUTS": str(outputs)}, capture_output=True, text=True, timeout=300,
            preexec_fn=_bound_by_modes,
        )

    return run


def test_a_recorded_table_is_printed_though_it_cannot_be_written(closed) -> None:
    done = closed("table", "table1", "--recorded")
    assert done.returncode == 0, done.stderr
    assert "| baseline" in done.stdout
    assert re.search(r"^no files: \S+/outputs/\S+ cannot be written$", done.stdout, re.M)


def test_a_stage_on_a_closed_place_is_one_line(closed) -> None:
    done = closed("corpus", "-p", "smoke")
    assert done.returncode == 6
    assert "closed to this process" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
