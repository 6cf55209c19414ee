"""The notebook runner on small notebooks: parameters, failures, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from vdr.errors import BadInput
from vdr.report.notebooks import NotebookFailed, chapters, ensure_kernel, parameters_of, run_chapters, run_notebook


def write(
    path: Path, *cells: str, parameters: str | None = "record = 'here'\ncount = 2\nscale = 1.0\nflag = False"
) -> Path:
    notebook = new_notebook(cells=[new_markdown_cell("# A chapter")])
    if parameters is not None:
        notebook.cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    notebook.cells += [new_code_cell(text) for text in cells]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    nbformat.write(notebook, path)
    return path


def test_a_notebook_runs_with_its_parameters_and_gives_the_same_bytes_twice(tmp_path):
    source = write(
        tmp_path / "01_x.ipynb", "print(record, count * 2, scale)", "import os, pathlib; pathlib.Path.cwd().name"
    )
    for name in ("one", "two"):
        run_notebook(source, tmp_path / name / "01_x.ipynb", {"record": "there", "count": 4, "scale": 2})
    text = (tmp_path / "one" / "01_x.ipynb").read_text()
    assert (tmp_path / "two" / "01_x.ipynb").read_text() == text
    outputs = [o for cell in json.loads(text)["cells"] for o in cell.get("outputs", [])]
    assert "there 8 2" in "".join(outputs[0]["text"])
    assert str(tmp_path) not in text.replace(tmp_path.name, "")
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["01_x.ipynb"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"recrod": "x"}, r"unknown parameter 'recrod'; did you mean 'record'"),
        ({"count": "three"}, "'count' is a int"),
        ({"count": True}, "'count' is a int"),
        ({"flag": 1}, "'flag' is a bool"),
        ({"record": None}, "'record' is a str"),
    ],
)
def test_unknown_parameters_and_other_kinds_are_errors_before_anything_runs(tmp_path, given, complaint):
    source = write(tmp_path / "01_x.ipynb", "raise SystemExit('ran')")
    with pytest.raises(BadInput, match=complaint) as caught:
        run_notebook(source, tmp_path / "out" / "01_x.ipynb", given)
    assert "01_x.ipynb" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_failed_cell_is_named_and_an_earlier_result_stays(tmp_path):
    source = write(tmp_path / "01_x.ipynb", "if count > 2:\n    raise ValueError('no such\\nseed')", "print('after')")
    target = tmp_path / "out" / "01_x.ipynb"
    run_notebook(source, target)
    before = target.read_bytes()
    with pytest.raises(NotebookFailed) as caught:
        run_notebook(source, target, {"count": 3})
    line = str(caught.value)
    assert "01_x.ipynb: cell 3 ('if count > 2:') failed: ValueError: no such seed" in line
    assert "\n" not in line
    assert caught.value.exit_code not in (0, None)
    assert target.read_bytes() == before
    assert "after" not in json.dumps(
        json.loads((tmp_path / "out" / "01_x.failed.ipynb").read_text())["cells"][-1].get("outputs")
    )
    run_notebook(source, target)
    assert not (tmp_path / "out" / "01_x.failed.ipynb").exists()


def test_a_killed_kernel_and_a_slow_cell_are_named(tmp_path):
    killed = write(tmp_path / "01_x.ipynb", "x = 1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(NotebookFailed, match=r"01_x\.ipynb: cell 4 \('import os.*kernel died"):
        run_notebook(killed, tmp_path / "out" / "01_x.ipynb")
    slow = write(tmp_path / "02_x.ipynb", "import time; time.sleep(60)")
    with pytest.raises(NotebookFailed, match=r"02_x\.ipynb: cell 3 .*longer than 2 s"):
        run_notebook(slow, tmp_path / "out" / "02_x.ipynb", timeout_s=2)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [(None, "0 cells tagged"), ("x = open('y')", "more than literals"), ("x =", "more than literals")],
)
def test_a_notebook_without_a_plain_parameters_cell_is_refused(tmp_path, parameters, complaint):
    with pytest.raises(BadInput, match=complaint):
        parameters_of(write(tmp_path / "01_x.ipynb", "1", parameters=parameters))


def test_files_that_are_no_notebooks_are_refused(tmp_path):
    (tmp_path / "01_x.ipynb").write_text("{")
    with pytest.raises(BadInput, match="not a notebook"):
        parameters_of(tmp_path / "01_x.ipynb")
    with pytest.raises(BadInput, match="no such notebook"):
        parameters_of(tmp_path / "02_x.ipynb")


def test_chapters_share_parameters_and_unknown_names_are_refused(tmp_path):
    write(tmp_path / "01_a.ipynb", "print(record)", parameters="record = 'r'")
    write(tmp_path / "02_b.ipynb", "print(depth)", parameters="depth = 1")
    (tmp_path / "scratch.ipynb").write_text("{}")
    assert [path.name for path in chapters(tmp_path)] == ["01_a.ipynb", "02_b.ipynb"]
    done = run_chapters(tmp_path / "out", {"record": "x", "depth": 7}, root=tmp_path)
    assert [path.name for path in done] == ["01_a.ipynb", "02_b.ipynb"]
    assert '"7\\n"' in done[1].read_text()
    with pytest.raises(BadInput, match="unknown notebook '03_c"):
        run_chapters(tmp_path / "out", {}, names=["03_c.ipynb"], root=tmp_path)
    with pytest.raises(BadInput, match="unknown parameter 'depht'; did you mean 'depth'"):
        run_chapters(tmp_path / "out", {"depht": 7}, root=tmp_path)


def test_the_kernel_is_this_python():
    assert ensure_kernel() == "vdr"
    assert ensure_kernel() == "vdr"
