"""Grounded descriptions of labelled pages, written by the teacher (WT §3, arm D; App. J)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from vdr.corpus.access import PageSet
from vdr.models.prompts import DESCRIBE_PROMPT
from vdr.progress import track
from vdr.teacher.engines import TransformersTeacher

__all__ = ["write_descriptions"]


def write_descriptions(
    rows: pd.DataFrame,
    pages: PageSet,
    teacher: TransformersTeacher,
    out: Path,
    measures: dict[str, Any],
    *,
    label: str = "descriptions",
) -> None:
    """Write ``descriptions.parquet`` (row_id, description), one a row, in row order. Empty ones are counted and kept empty."""
    found: dict[int, str] = {}
    for page_id, part in track(list(rows.groupby("page_id", sort=True)), label=label, unit="pages"):
        texts = teacher.describe(pages.image(pages.index(str(page_id))), part["query"].tolist(), DESCRIBE_PROMPT)
        found |= {int(row): text.strip() for row, text in zip(part["row_id"], texts, strict=True)}
    table = pd.DataFrame({"row_id": sorted(found), "description": [found[i] for i in sorted(found)]})
    table.to_parquet(out / "descriptions.parquet", index=False)
    measures["descriptions"] = len(table)
    measures["empty"] = int((table["description"] == "").sum())
    measures["tokens"] = int(sum(len(t) for t in teacher.tokenizer(table["description"].tolist())["input_ids"]))
