"""Reading the study's YAML: strict about repeated keys and about words that YAML 1.1 turns into other values, and clear
about where an error is.

Plain values are what YAML 1.2's core schema says: `true`, `false`, `null`, decimal numbers (`1e-4` among them), else text.
What YAML 1.1 readers take for a truth value, a date, or a number in another base is refused with what was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from vdr.errors import BadInput, did_you_mean
from vdr.textfiles import text_of

__all__ = ["explain", "merge", "parse_yaml", "read_yaml", "settable_paths"]


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (PyYAML would silently keep the last) and YAML 1.1's surprises."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own protocol)


_SURPRISE = "!surprise"
_UNCLEAR = "means different things to different readers of YAML"
_PLAIN = {
    "tag:yaml.org,2002:null": r"~|null|Null|NULL|",
    "tag:yaml.org,2002:bool": r"true|True|TRUE|false|False|FALSE",
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9]*)",
    "tag:yaml.org,2002:float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "tag:yaml.org,2002:merge": r"<<",
}
#: What YAML 1.1 reads otherwise than people do, and what to write instead.
_SURPRISES = {
    r"yes|Yes|YES|on|On|ON": "write true, or quote it where the word is meant",
    r"no|No|NO|off|Off|OFF": "write false, or quote it where the word is meant",
    r"[-+]?0[0-9_]+": "write the number without leading zeros, or quote it where text is meant",
    r"[-+]?0[xob][0-9a-fA-F_]+": "write the number in decimal digits, or quote it where text is meant",
    r"[-+]?[0-9][0-9]*_[0-9_]*(\.[0-9_]*)?": "write the number without underscores, or quote it where text is meant",
    r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?": "write a number of one unit, or quote it where text is meant",
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?": "quote it where text is meant; no setting is a date",
}
for _tag, _pattern in [*_PLAIN.items(), *((_SURPRISE, pattern) for pattern in _SURPRISES)]:
    _StrictLoader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), None)


def _surprise(loader: _StrictLoader, node: yaml.ScalarNode) -> Any:
    todo = next(todo for pattern, todo in _SURPRISES.items() if re.fullmatch(pattern, node.value))
    raise yaml.constructor.ConstructorError(None, None, f"{node.value!r} {_UNCLEAR}; {todo}", node.start_mark)  # fmt: skip


_StrictLoader.add_constructor(_SURPRISE, _surprise)


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


def parse_yaml(text: str, where: str | Path) -> Any:
    """The value of a YAML text. Raises `BadInput` with `where`, and with the line where that is a file."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None and isinstance(where, Path) else ""
        problem = str(getattr(error, "problem", None) or error)
        raise BadInput(problem if _UNCLEAR in problem else f"not YAML ({problem})", where=f"{where}{line}") from error
    except RecursionError:
        raise BadInput("nested too deeply", where=where) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises `BadInput` with file and line for anything else."""
    value = parse_yaml(text_of(path), path)
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
    elif first["type"] == "kind":
        path.append(first["ctx"]["field"])
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
