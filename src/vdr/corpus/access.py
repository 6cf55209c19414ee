"""Reading a corpus artefact: pages by id, training rows, suites with their judgements."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from PIL import Image

from vdr.corpus.qrels import read_qrels
from vdr.errors import BadInput, DamagedArtefact
from vdr.pixels import open_page

__all__ = ["PageSet", "SuiteDataset", "TrainCorpus", "load_suites", "load_train"]


class PageSet:
    """Pages of one collection in file order. Images are decoded when asked for, row group by row group."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise DamagedArtefact("no pages here", where=path, todo="make the corpus again (`vdr corpus`)")
        self.path = path
        self._file = pq.ParquetFile(path)
        table = self._file.read(
            columns=[c for c in ("page_id", "source", "split", "sha256") if c in self._file.schema_arrow.names]
        )
        self.table: pd.DataFrame = table.to_pandas()
        self.ids: list[str] = [str(i) for i in self.table["page_id"]]
        if len(set(self.ids)) != len(self.ids):
            raise DamagedArtefact("a page id occurs twice", where=f"{path}: page_id")
        self._position = {page_id: i for i, page_id in enumerate(self.ids)}
        sizes = [self._file.metadata.row_group(g).num_rows for g in range(self._file.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self._group: tuple[int, list] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, page_id: str) -> int:
        """Position of a page; `BadInput` for an unknown id."""
        try:
            return self._position[page_id]
        except KeyError:
            raise BadInput(f"no page {page_id!r}", where=self.path) from None

    def image_bytes(self, i: int) -> bytes:
        """The page as it is stored (PNG or as published)."""
        group = int(np.searchsorted(self._starts, i, side="right") - 1)
        if self._group is None or self._group[0] != group:
            column = self._file.read_row_group(group, columns=["image"]).column("image").to_pylist()
            self._group = (group, column)
        return self._group[1][i - self._starts[group]]["bytes"]

    def image(self, i: int) -> Image.Image:
        """The decoded page, RGB as `vdr.pixels` reads it; `DamagedArtefact` naming the page where that cannot be."""
        try:
            return open_page(self.image_bytes(i), f"page {self.ids[i]}")
        except BadInput as error:
            raise DamagedArtefact(str(error), where=self.path) from error


@dataclass
class TrainCorpus:
    """Training pages and rows. ``rows`` has row_id, query_id, query, page_id, source, split and, if drawn, breadth."""

    path: Path
    pages: PageSet
    rows: pd.DataFrame

    def truth(self) -> np.ndarray | None:
        """Grades int8 ``[rows, pages]`` in file order, where the corpus was drawn; None where nobody knows."""
        file = self.path / "train" / "truth.npz"
        return np.load(file)["grades"] if file.is_file() else None


@dataclass
class SuiteDataset:
    """One data set: queries by id, judgements by query id (grades above zero, and judged zeros where published)."""

    suite: str
    name: str
    pages: PageSet
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)


def load_train(path: Path) -> TrainCorpus:
    """The training part of a corpus artefact. Raises `DamagedArtefact` for a row on an unknown page or without a query."""
    path = Path(path)
    pages = PageSet(path / "train" / "pages.parquet")
    rows = pd.read_parquet(path / "train" / "rows.parquet")
    unknown = rows.loc[~rows["page_id"].isin(set(pages.ids)), "row_id"]
    if len(unknown):
        raise DamagedArtefact(
            f"row {unknown.iloc[0]} names a page that is not there", where=path / "train" / "rows.parquet"
        )
    blank = rows.loc[rows["query"].str.strip() == "", "row_id"]
    if len(blank):
        raise DamagedArtefact(f"row {blank.iloc[0]} has no query", where=f"{path / 'train' / 'rows.parquet'}: query")
    return TrainCorpus(path, pages, rows)


def load_suites(path: Path) -> list[SuiteDataset]:
    """Every data set of a corpus artefact, suites and names in alphabetical order."""
    found = []
    for folder in sorted((Path(path) / "suites").glob("*/*/")):
        queries = pd.read_parquet(folder / "queries.parquet")
        found.append(
            SuiteDataset(
                folder.parent.name,
                folder.name,
                PageSet(folder / "pages.parquet"),
                dict(zip(queries["query_id"].astype(str), queries["query"], strict=True)),
                read_qrels(folder / "qrels.tsv"),
            )
        )
    return found
