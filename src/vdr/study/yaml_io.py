"""Reading the study's YAML: strict about repeated keys, and clear about where an error is."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from vdr.errors import BadInput, did_you_mean

__all__ = ["explain", "merge", "read_yaml", "settable_paths"]


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (PyYAML would silently keep the last)."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
    loader.flatten_mapping(node)
    pairs: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in pairs:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        pairs[key] = loader.construct_object(value_node, deep=True)
    return pairs


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `BadInput` with file and line for anything else."""
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError as error:
        raise BadInput("no such file", where=path) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise BadInput(f"not YAML ({getattr(error, 'problem', None) or error})", where=f"{path}{line}") from error
    if not isinstance(value, dict):
        raise BadInput("not a mapping of names to values", where=path)
    return value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping; lists and scalars are replaced whole."""
    merged = dict(base)
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = value
    return merged


def settable_paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted path (`training.batch_size`) that names a field of a settings class."""
    paths = []
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            paths.extend(settable_paths(inner, f"{prefix}{name}."))
        else:
            paths.append(prefix + name)
    return paths


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> BadInput:
    """A pydantic error as one line: the first field that is wrong, why, what is known there, how many more are wrong."""
    problems = error.errors()
    first = problems[0]
    path = [str(part) for part in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    todo = None
    if first["type"] == "extra_forbidden":
        message = f"unknown field {path[-1]!r}"
        inner = _model_at(model, path[:-1])
        if inner is not None:
            todo = did_you_mean(path[-1], inner.model_fields)
    elif first["type"] == "missing":
        message = f"field {path[-1]!r} is missing"
    else:
        message = f"{message} (given: {first['input']!r})"
    if len(problems) > 1:
        message += f" (and {len(problems) - 1} more wrong)"
    return BadInput(message, where=f"{where}: {'.'.join(path)}", todo=todo)


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    for part in path:
        info = model.model_fields.get(part)
        if info is None or not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
            return None
        model = info.annotation
    return model
