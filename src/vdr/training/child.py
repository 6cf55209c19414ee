"""`python -m vdr.training.child --spec spec.json`: one training run in a process of its own.

The specification names `run_training`'s arguments (paths as text; arm, recipe and settings as plain data) and
`measures_path`, where the measures are written as JSON. Exit status 0, or the error's own with its one line on
stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vdr.errors import BadInput, VdrError

__all__ = ["main", "train_from_spec"]

PATHS = ("rows_dir", "maps_path", "corpus_path", "vision_cache_path", "backbone_dir", "out_dir", "measures_path")
FIELDS = {*PATHS, "arm", "recipe", "seed", "settings", "device", "threads", "label", "stop_after"}
REQUIRED = {"rows_dir", "corpus_path", "backbone_dir", "out_dir", "arm", "recipe", "seed", "settings"}


def train_from_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the specification; returns the measures. Raises BadInput on missing or unknown fields."""
    from vdr.study.sections.training import ArmLosses, RecipeSettings, TrainingSettings
    from vdr.training.loop import run_training

    if set(spec) - FIELDS or REQUIRED - set(spec):
        wrong = [f"unknown {name}" for name in sorted(set(spec) - FIELDS)] + [
            f"missing {name}" for name in sorted(REQUIRED - set(spec))
        ]
        raise BadInput(", ".join(wrong), where="spec")
    paths: dict[str, Any] = {name: Path(spec[name]) if spec.get(name) is not None else None for name in PATHS}
    try:
        arm, recipe = ArmLosses.model_validate(spec["arm"]), RecipeSettings.model_validate(spec["recipe"])
        settings = TrainingSettings.model_validate(spec["settings"])
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", where="spec") from error
    measures: dict[str, Any] = {}
    optional = {name: spec[name] for name in ("device", "threads", "label", "stop_after") if name in spec}
    run_training(
        paths["rows_dir"],
        paths["maps_path"],
        paths["corpus_path"],
        paths["vision_cache_path"],
        paths["backbone_dir"],
        arm,
        recipe,
        spec["seed"],
        settings,
        paths["out_dir"],
        measures,
        **optional,
    )
    if paths["measures_path"] is not None:
        beside = paths["measures_path"].with_name(paths["measures_path"].name + ".new")
        beside.write_text(json.dumps(measures, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, paths["measures_path"])
    return measures


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vdr.training.child", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True, help="JSON file with run_training's arguments")
    options = parser.parse_args(arguments)
    try:
        try:
            spec = json.loads(options.spec.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"the specification cannot be read ({error})", where=options.spec) from error
        train_from_spec(spec)
    except VdrError as error:
        print(f"vdr: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
