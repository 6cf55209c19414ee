"""A study of one's own pages: a folder of page images and a CSV of queries, no corpus and no teacher needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from vdr.audit.design import Design, PageSource, design_everyone
from vdr.audit.study import BREADTHS
from vdr.errors import BadInput
from vdr.pixels import open_page
from vdr.textfiles import real_number, text_table

__all__ = ["OwnPages", "design_own", "read_own_pages"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")


@dataclass
class OwnPages:
    """Images by page id (the file name), transcripts found beside them (`page.txt`), queries, and pairs with ratings
    if given."""

    files: dict[str, Path]
    transcripts: dict[str, str]
    queries: dict[str, str]
    breadth: dict[str, str]
    pairs: pd.DataFrame

    def source(self) -> PageSource:
        """A page source that opens the files. Raises `BadInput` for what `vdr.pixels` refuses."""

        def image(page: str) -> Image.Image:
            return open_page(self.files[page], str(self.files[page]))

        return image


def read_own_pages(folder: Path, queries: Path, ratings: Path | None = None) -> OwnPages:
    """Read pages and queries.

    `queries`: CSV with query_id, query, optionally breadth (specific | broad) and labelled_page (a file name).
    `ratings` (optional): CSV with query_id, page, score in [0, 1]; then only those pairs are audited, otherwise every
    query meets every page. Raises `BadInput` naming file, row and field.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput("no such folder", where=folder)
    files = {file.name: file for file in sorted(folder.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file()}
    if not files:
        raise BadInput("no page images", where=folder, todo=f"put files ending in {', '.join(SUFFIXES)} there")
    texts = {}
    for name, file in files.items():
        beside = file.with_suffix(".txt")
        if beside.is_file():
            texts[name] = beside.read_text(encoding="utf-8", errors="replace")
    asked = text_table(queries, ("query_id", "query"))
    labelled: dict[str, str] = {}
    breadth: dict[str, str] = {}
    for row, entry in enumerate(asked.to_dict("records"), 1):
        where = f"{queries}, row {row}"
        query = entry["query_id"]
        if not query or not entry["query"].strip():
            raise BadInput("query_id or query is blank", where=where)
        page = entry.get("labelled_page", "")
        if page and page not in files:
            raise BadInput(f"labelled_page {page!r} is not in {folder}", where=where)
        if page:
            labelled[query] = page
        if entry.get("breadth", ""):
            if entry["breadth"] not in BREADTHS:
                raise BadInput(
                    f"breadth {entry['breadth']!r}", where=where, todo="write specific or broad, or leave it blank"
                )
            breadth[query] = entry["breadth"]
    if asked["query_id"].duplicated().any():
        raise BadInput(
            f"query {asked['query_id'][asked['query_id'].duplicated()].iloc[0]!r} stands twice", where=queries
        )
    if len(asked) < 2:
        raise BadInput("one query alone cannot be shuffled", where=queries, todo="write at least two queries")
    if ratings is None:
        pairs = asked[["query_id"]].merge(pd.DataFrame({"page_id": list(files)}), how="cross")
        pairs["score"] = np.nan
    else:
        given = text_table(ratings, ("query_id", "page", "score"))
        for row, entry in enumerate(given.itertuples(), 1):
            where = f"{ratings}, row {row}"
            if entry.query_id not in set(asked["query_id"]):
                raise BadInput(f"unknown query {entry.query_id!r}", where=where)
            if entry.page not in files:
                raise BadInput(f"page {entry.page!r} is not in {folder}", where=where)
            score = real_number(entry.score)
            if score is None or not 0 <= score <= 1:
                raise BadInput(f"score {entry.score!r}", where=where, todo="a number from 0 to 1")
        pairs = given.rename(columns={"page": "page_id"})[["query_id", "page_id", "score"]].astype({"score": float})
        if pairs.duplicated(["query_id", "page_id"]).any():
            raise BadInput("a query has one page twice", where=ratings)
    is_labelled = [labelled.get(q) == p for q, p in zip(pairs["query_id"], pairs["page_id"], strict=True)]
    pairs["role"] = np.where(is_labelled, "labelled", "mined")
    ranked = (
        pairs["score"].where(~np.array(is_labelled)).groupby(pairs["query_id"]).rank(method="first", ascending=False)
    )
    pairs["rank"] = ranked.fillna(0 if ratings is not None else -1).astype(int)
    return OwnPages(files, texts, dict(zip(asked["query_id"], asked["query"], strict=True)), breadth, pairs)


def design_own(own: OwnPages, *, annotators: int, seed: int, hedge: float = 0.5) -> Design:
    """Everybody grades every pair. Raises `BadInput` when one query's pages are more than half of the pairs."""
    return design_everyone(
        own.pairs, own.queries, annotators=annotators, seed=seed, hedge=hedge, breadth=own.breadth or None
    )
