"""The committed notebooks: thin, executed, free of paths, and still giving their checked outputs (nbval)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from vdr.report.notebooks import chapters, ensure_kernel, parameters_of
from vdr.study.catalogue import load_tables
from vdr.study.settings import repository_root

ALL = chapters()
NAMES = [path.name for path in ALL]
RECORDED = repository_root() / "outputs" / "recorded" / "mini" / "record.json"


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_chapters_are_numbered_without_a_gap_and_every_tables_notebook_exists():
    assert [name[:2] for name in NAMES] == [f"{i:02d}" for i in range(len(NAMES))]
    for table in load_tables().values():
        assert table.notebook is None or table.notebook in NAMES, table.name


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_chapter_is_thin_and_takes_parameters(path):
    notebook = read(path)
    assert notebook.cells[0].source.startswith(f"# {path.name[:2]} · ")
    assert notebook.metadata.kernelspec.name == "vdr"
    assert parameters_of(path)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert max(len(text.splitlines()) for text in code) <= 25  # a cell fits on a screen
    logic = re.compile(r"^\s*(def|class|while|with|try)\b", re.MULTILINE)
    assert not [text for text in code if logic.search(text)]  # logic lives in the package
    words = sum(len(c.source.split()) for c in notebook.cells if c.cell_type == "markdown")
    assert words > 60


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_chapter_is_committed_executed_and_without_paths_or_errors(path):
    if not RECORDED.is_file():
        pytest.skip("no recorded run yet")
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    assert counts == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert sum(len(cell.outputs) > 0 for cell in code) >= 2
    text = path.read_text(encoding="utf-8")
    assert str(repository_root()) not in text
    assert str(Path.home()) + "/" not in text
    assert "papermill" not in notebook.metadata
    assert path.stat().st_size < 1_500_000


def test_checked_cells_give_their_committed_outputs():
    """nbval runs every chapter from the recorded run, two at a time; only cells marked NBVAL_CHECK_OUTPUT are compared."""
    if not RECORDED.is_file():
        pytest.skip("no recorded run yet")
    assert all("# NBVAL_CHECK_OUTPUT" in path.read_text(encoding="utf-8") for path in ALL)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(repository_root())]
    command += ["--nbval-lax", "--nbval-kernel-name", ensure_kernel(), "--nbval-cell-timeout", "300"]
    environment = os.environ | {"PYTEST_ADDOPTS": ""}

    def check(some: list[Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *map(str, some)], capture_output=True, text=True, env=environment, check=False)

    with ThreadPoolExecutor(2) as lanes:
        both = list(lanes.map(check, (ALL[::2], ALL[1::2])))
    for done in both:
        assert done.returncode == 0, done.stdout[-4000:]
        assert re.search(r"\d+ passed", done.stdout)


def test_a_changed_result_is_noticed(tmp_path):
    """The check itself: a checked cell whose committed output is not what it gives fails under nbval."""
    cells = [
        nbformat.v4.new_code_cell(
            "# NBVAL_CHECK_OUTPUT\nprint(1 + 1)", outputs=[nbformat.v4.new_output("stream", name="stdout", text="3\n")]
        )
    ]
    kernel = {"display_name": "x", "language": "python", "name": ensure_kernel()}
    path = tmp_path / "x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout[-2000:]
