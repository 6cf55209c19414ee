"""Imports run one way: every module stands on a floor of the house and imports from its own or a lower one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vdr

SOURCE = Path(vdr.__file__).parent

#: From the ground up. A name stands for the module or package and all within it, unless a longer name says otherwise.
FLOORS = [
    # What knows nothing of pages, models or papers, and the study as data.
    {"vdr", "vdr.errors", "vdr.progress", "vdr.disk", "vdr.textfiles", "vdr.pixels", "vdr.provenance", "vdr.instructions",
     "vdr.hardware", "vdr.store", "vdr.study", "vdr.kernels", "vdr.losses", "vdr.graph", "vdr.children", "vdr.scheduler",
     "vdr.states"},
    {"vdr.corpus", "vdr.models", "vdr.manifests"},
    {"vdr.teacher", "vdr.mining"},
    {"vdr.supervision"},
    {"vdr.training"},
    {"vdr.evaluation", "vdr.audit", "vdr.compression"},
    # The compression study's own tables and figures share the report's style.
    {"vdr.report", "vdr.compression.figures", "vdr.compression.chapters"},
    # What chains the stages, and the commands that a person types.
    {"vdr.steps", "vdr.sameness", "vdr.finish", "vdr.parts", "vdr.pipeline", "vdr.cli", "vdr.children_preload", "vdr.audit.commands",
     "vdr.compression.steps", "vdr.compression.reproduce", "vdr.compression.commands"},
]  # fmt: skip
HEIGHT = {name: height for height, names in enumerate(FLOORS) for name in names}

#: (importing module, imported module): why it may reach upwards. Empty is best.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def floor(module: str) -> int:
    """Height of the longest entry that `module` lies in; the bare package's own entry is for itself alone."""
    name = module
    while name not in HEIGHT or (name == "vdr" and module != "vdr"):
        if "." not in name:
            raise KeyError(f"{module} stands on no floor; give its part a place in FLOORS")
        name = name.rpartition(".")[0]
    return HEIGHT[name]


def imports(tree: ast.AST, module: str, package: bool = False) -> list[tuple[int, str]]:
    """Line and module of every import of this package's own, wherever it stands (in functions too)."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: counted from the module's package
                up = module.split(".")[: len(module.split(".")) - node.level + package]
                base = ".".join([*up, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in MODULES else base) for name in names]
    return sorted({(line, name) for line, name in found if name.split(".")[0] == "vdr"})


def upward(module: str, source: str, package: bool = False) -> list[tuple[int, str]]:
    """Imports of `module` that reach a higher floor."""
    return [(line, name) for line, name in imports(ast.parse(source), module, package) if floor(name) > floor(module)]


def test_no_module_imports_from_a_higher_floor():
    found = []
    for module, path in MODULES.items():
        reached = upward(module, path.read_text(encoding="utf-8"), path.name == "__init__.py")
        found += [f"{module}, line {line}: {name}" for line, name in reached if (module, name) not in EXCEPTIONS]
    assert not found


def test_every_entry_and_every_exception_is_still_needed():
    """A part that is gone leaves the table, and an exception that is mended leaves the list."""
    assert set(HEIGHT) <= set(MODULES)
    assert sum(map(len, FLOORS)) == len(HEIGHT), "a name on two floors"
    for module, name in EXCEPTIONS:
        path = MODULES[module]
        assert name in {target for _, target in upward(module, path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("source", "reaches"),
    [
        ("import vdr.evaluation.search", "vdr.evaluation.search"),
        ("from vdr.evaluation.search import search", "vdr.evaluation.search"),
        ("from vdr import report", "vdr.report"),
        ("def late():\n    from vdr.compression import figures", "vdr.compression.figures"),
        ("from ..training.loop import run_training", "vdr.training.loop"),
        ("from vdr.models.vectors import VectorSet\nfrom . import files\nimport numpy", None),
    ],
)
def test_the_check_sees_every_form_of_import(source, reaches):
    assert [name for _, name in upward("vdr.mining.finished", source)] == ([reaches] if reaches else [])


def test_a_part_without_a_floor_is_told():
    with pytest.raises(KeyError, match="stands on no floor"):
        floor("vdr.nowhere.module")
