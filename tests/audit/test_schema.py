"""The published CSV schema is the one the reader uses."""

from __future__ import annotations

from pathlib import Path

import yaml

from vdr.audit.judgements import JUDGEMENT_COLUMNS, PAIR_COLUMNS

SCHEMA = Path(__file__).parents[2] / "data_manifests" / "schemas" / "released_judgements.yaml"


def test_columns_are_those_of_the_reader():
    files = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))["files"]
    assert tuple(files["judgements"]["columns"]) == JUDGEMENT_COLUMNS
    assert tuple(files["pairs"]["columns"]) == PAIR_COLUMNS
    assert tuple(files["queries"]["columns"]) == ("query_id", "breadth")
