"""Run notebooks headless with papermill: parameters checked, one kernel process each, a failed cell named.

papermill only warns about a parameter that a notebook does not have, and a killed kernel leaves a half-filled file;
here both are errors, and the finished notebook appears under its name only when every cell has run. What is kept is
free of times and paths, so that the same run gives the same bytes.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import nbformat

from vdr.errors import BadInput, UnfitMachine, VdrError, did_you_mean
from vdr.instructions import switches
from vdr.progress import track
from vdr.report.record import shown_path
from vdr.study.settings import repository_root

__all__ = [
    "KERNEL",
    "NotebookFailed",
    "chapters",
    "ensure_kernel",
    "parameters_of",
    "refresh",
    "run_chapters",
    "run_notebook",
]

KERNEL = "vdr"
_TIMES = ("papermill", "execution")
_ADDED = {"injected-parameters", "papermill-error-cell-tag"}


class NotebookFailed(VdrError):
    """A cell raised, ran too long, or its kernel died. The line names the notebook and the cell."""

    exit_code = 7


def ensure_kernel() -> str:
    """Register this Python as the Jupyter kernel `vdr` inside its own environment; returns the kernel's name.

    Nothing is written when it is there already. Raises UnfitMachine when another kernel of that name would be taken
    instead.
    """
    from ipykernel.kernelspec import make_ipkernel_cmd, write_kernel_spec
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    # The level and the variable silence remarks, once a kernel, that help no reader: transport, frozen modules, shutdown. The switches
    # hold a kernel to the declared instruction level even where it imports pandas before vdr.
    argv = make_ipkernel_cmd(extra_arguments=["--log-level=CRITICAL"])
    environment = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", **switches()}
    wanted = {"argv": argv, "display_name": "Python (vdr)", "env": environment}

    def found() -> tuple[list[str], dict[str, str]] | None:
        with contextlib.suppress(NoSuchKernel):
            spec = KernelSpecManager().get_kernel_spec(KERNEL)
            return list(spec.argv), dict(spec.env)
        return None

    if found() == (argv, environment):
        return KERNEL
    with tempfile.TemporaryDirectory() as folder:
        spec = write_kernel_spec(Path(folder) / KERNEL, overrides=wanted)
        KernelSpecManager().install_kernel_spec(str(spec), KERNEL, prefix=sys.prefix)
    now = found()
    if now is None or now[0] != argv:
        what = f"the Jupyter kernel {KERNEL!r} starts {now[0][0] if now else 'nothing'}, not {sys.executable}"
        raise UnfitMachine(what, todo=f"remove it: jupyter kernelspec remove {KERNEL}")
    return KERNEL


def parameters_of(path: Path) -> dict[str, Any]:
    """Name → default of a notebook's parameters: the literal assignments in its one cell tagged `parameters`.

    Raises BadInput when the file is no notebook, has no such cell or more than one, or a default is no literal.
    """
    return _parameters(_read(path), path)


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise BadInput("no such notebook", where=shown_path(path)) from None
    except Exception as error:  # nbformat raises many kinds for a file that is no notebook
        raise BadInput(f"not a notebook ({type(error).__name__})", where=shown_path(path)) from error


def _parameters(notebook: nbformat.NotebookNode, path: Path) -> dict[str, Any]:
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise BadInput(f"has {len(cells)} cells tagged `parameters`, it needs one", where=shown_path(path))
    defaults: dict[str, Any] = {}
    try:
        for node in ast.parse(cells[0].source).body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                defaults[node.targets[0].id] = ast.literal_eval(node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                defaults[node.target.id] = ast.literal_eval(node.value)
            else:
                raise ValueError(ast.unparse(node))
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"the parameters cell holds more than literals ({error})", where=shown_path(path)) from error
    return defaults


def _check(given: Mapping[str, Any], defaults: Mapping[str, Any], path: Path) -> None:
    for name, value in given.items():
        if name not in defaults:
            raise BadInput(f"unknown parameter {name!r}", where=shown_path(path), todo=did_you_mean(name, defaults))
        default = defaults[name]
        fits = isinstance(value, type(default)) or (isinstance(default, float) and type(value) is int)
        if isinstance(default, int) and not isinstance(default, bool) and isinstance(value, bool):
            fits = False
        if default is not None and not fits:
            what = f"parameter {name!r} is a {type(default).__name__}, given: {value!r}"
            raise BadInput(what, where=shown_path(path))


def run_notebook(
    source: Path, target: Path, parameters: Mapping[str, Any] | None = None, *, timeout_s: int = 600
) -> Path:
    """Execute `source` with `parameters` and put the finished notebook at `target` (which may be `source` itself).

    The notebook's working directory is its own. Raises BadInput for a parameter that the notebook does not have or of
    another kind than its default, NotebookFailed for a cell that raises, takes more than `timeout_s` seconds or loses
    its kernel; the unfinished notebook is then left beside the target as `<name>.failed.ipynb` and an earlier target
    stays as it was.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    source, target, given = Path(source), Path(target), dict(parameters or {})
    _check(given, parameters_of(source), source)
    kernel = ensure_kernel()
    target.parent.mkdir(parents=True, exist_ok=True)
    failed = target.with_name(f"{target.stem}.failed.ipynb")
    logging.getLogger("papermill").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            papermill.execute_notebook(
                str(source),
                str(failed),
                parameters=given,
                kernel_name=kernel,
                language="python",
                progress_bar=False,
                cwd=str(source.parent),
                execution_timeout=timeout_s,
            )
    except papermill.exceptions.PapermillExecutionError as error:
        why = f"{error.ename}: {error.evalue}"
        raise _failure(source, failed, why, raised=True) from None
    except CellTimeoutError:
        raise _failure(source, failed, f"took longer than {timeout_s} s") from None
    except DeadKernelError:
        raise _failure(source, failed, "its kernel died (out of memory?)") from None
    _write(_clean(_read(failed), kernel), target)
    failed.unlink()
    return target


def _failure(source: Path, failed: Path, why: str, *, raised: bool = False) -> NotebookFailed:
    notebook = _read(failed)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    broken = next(
        (c for c in cells if c.metadata.get("papermill", {}).get("status") in ("failed", "running", "pending")),
        cells[-1] if cells else None,
    )
    if raised:
        broken = next((c for c in cells if any(o.output_type == "error" for o in c.get("outputs", []))), broken)
    # papermill puts cells of its own in; the reader counts those of the notebook.
    own = [c for c in notebook.cells if not _ADDED & set(c.metadata.get("tags", []))]
    number = own.index(broken) + 1 if broken in own else 0
    line = next((text for text in broken.source.splitlines() if text.strip()), "") if broken is not None else ""
    what = f"cell {number} ({line.strip()[:60]!r}) failed: {why}"
    return NotebookFailed(what, where=shown_path(source), todo=f"see {shown_path(failed)}")


def _clean(notebook: nbformat.NotebookNode, kernel: str) -> nbformat.NotebookNode:
    """Without times, paths and changing ids: the same outputs give the same bytes."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python (vdr)", "language": "python", "name": kernel},
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        for name in _TIMES:
            cell.metadata.pop(name, None)
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            cell["id"] = f"injected-parameters-{number}"
        if not tags:
            cell.metadata.pop("tags", None)
    return notebook


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def chapters(root: Path | None = None) -> list[Path]:
    """The notebooks of the repository, in their order."""
    return sorted((root or repository_root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def run_chapters(
    out: Path,
    parameters: Mapping[str, Any],
    *,
    names: Iterable[str] | None = None,
    root: Path | None = None,
    timeout_s: int = 600,
) -> list[Path]:
    """Run the chapters (all, or those named by file name) into `out`, one kernel each, in order.

    Every notebook is given those of `parameters` that it has; a parameter that none has is an error. Raises BadInput
    for an unknown notebook or parameter before anything runs, NotebookFailed at the first that fails.
    """
    every = {path.name: path for path in chapters(root)}
    wanted = list(every) if names is None else list(names)
    for name in wanted:
        if name not in every:
            raise BadInput(f"unknown notebook {name!r}", where="notebooks", todo=did_you_mean(name, every))
    known = {name: parameters_of(every[name]) for name in wanted}
    for parameter in parameters:
        if not any(parameter in defaults for defaults in known.values()):
            names_of_all = {p for defaults in known.values() for p in defaults}
            raise BadInput(
                f"unknown parameter {parameter!r}", where="notebooks", todo=did_you_mean(parameter, names_of_all)
            )
    done = []
    for name in track(wanted, "notebooks", "notebook"):
        own = {key: value for key, value in parameters.items() if key in known[name]}
        done.append(run_notebook(every[name], Path(out) / name, own, timeout_s=timeout_s))
    return done


def refresh(names: Iterable[str] | None = None, *, root: Path | None = None, timeout_s: int = 600) -> list[Path]:
    """Execute the committed notebooks in place with their default parameters (from the recorded run)."""
    wanted = None if names is None else set(names)
    paths = [path for path in chapters(root) if wanted is None or path.name in wanted]
    return [run_notebook(path, path, timeout_s=timeout_s) for path in track(paths, "notebooks", "notebook")]
