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

PAGES_TOGETHER = 16


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
    by_page = [(str(page_id), part) for page_id, part in rows.groupby("page_id", sort=True)]
    shards = [by_page[i : i + PAGES_TOGETHER] for i in range(0, len(by_page), PAGES_TOGETHER)]
    for shard in track(shards, label=label, unit="batches"):
        images = [pages.image(pages.index(page_id)) for page_id, _ in shard]
        texts = teacher.describe(images, [part["query"].tolist() for _, part in shard], DESCRIBE_PROMPT)
        for (_, part), written in zip(shard, texts, strict=True):
            found |= {int(row): text.strip() for row, text in zip(part["row_id"], written, strict=True)}
    table = pd.DataFrame({"row_id": sorted(found), "description": [found[i] for i in sorted(found)]})
    table.to_parquet(out / "descriptions.parquet", index=False)
    measures["descriptions"] = len(table)
    measures["empty"] = int((table["description"] == "").sum())
    measures["tokens"] = int(sum(len(t) for t in teacher.tokenizer(table["description"].tolist())["input_ids"]))
