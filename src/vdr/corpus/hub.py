"""The papers' real data, read through `datasets` into the corpus artefact's own form (WT §3, App. E; EV App. B).

A source is a hub id at a pinned commit, or a local directory in the hub's layout (parquet files, and a README.md
with `configs`).

The training set (`vidore/colpali_train_set`): pages deduplicated by the hash of their decoded pixels; a frozen row
manifest (the row id is the row's position in the source); rows without a usable page or without a query are
dropped, counted and listed.

Image bytes are stored as they were published. Nothing is kept in memory but hashes, and nothing is cached outside
the artefact when the source is a directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vdr.corpus.row_statistics import row_statistics
from vdr.errors import BadInput, DamagedArtefact, VdrError
from vdr.pixels import open_page, pixel_hash
from vdr.progress import track

__all__ = ["HubSource", "Subset", "build_train", "read_image"]

_FEATURES = {"info": {"features": {"image": {"_type": "Image"}}}}
PAGES = pa.schema(
    [
        ("page_id", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("source", pa.string()),
        ("sha256", pa.string()),
        ("split", pa.string()),
    ],
    metadata={"huggingface": json.dumps(_FEATURES)},
)
GROUP = 64  # pages in a row group: what a reader holds at once


@dataclass(frozen=True)
class HubSource:
    """id: a hub id (`owner/name`, with `revision` its 40-digit commit) or a local directory in the hub's layout."""

    id: str
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.local:
            return
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.id):
            raise BadInput(
                f"{self.id!r} is neither a directory nor a hub id", where="source.id", todo="give owner/name"
            )
        if self.revision is None or not re.fullmatch(r"[0-9a-f]{40}", self.revision):
            what = f"{self.id} has no pinned revision (found {self.revision!r})"
            raise BadInput(what, where="source.revision", todo="give the 40-digit commit you mean to reproduce")

    @property
    def local(self) -> bool:
        return Path(self.id).is_dir()

    def configs(self) -> list[str]:
        """The source's configs. Raises BadInput when it cannot be reached or read."""
        from datasets import get_dataset_config_names

        with _readable(self):
            return list(get_dataset_config_names(self.id, revision=self.revision))

    def rows(self, split: str, config: str | None = None, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """The rows of a split in the source's order; images as {bytes, path}, undecoded."""
        from datasets import Image as ImageFeature
        from datasets import load_dataset

        with _readable(self, config, split):
            data = load_dataset(self.id, config, split=split, revision=self.revision, streaming=True)
            if columns is not None:
                missing = [c for c in columns if c not in (data.column_names or [])]
                if missing:
                    raise BadInput(
                        f"has no column {missing[0]!r}",
                        where=f"{self.id} {config or ''} {split}",
                        todo="check the layout",
                    )
                data = data.select_columns(columns)
            for name, feature in (data.features or {}).items():
                if isinstance(feature, ImageFeature):
                    data = data.cast_column(name, ImageFeature(decode=False))
            yield from data

    def columns(self, split: str, config: str | None = None) -> list[str]:
        from datasets import load_dataset

        with _readable(self, config, split):
            return list(load_dataset(self.id, config, split=split, revision=self.revision, streaming=True).column_names)


class _readable:
    """Turns whatever `datasets` raises about a source into one line; our own errors and interrupts pass."""

    def __init__(self, source: HubSource, config: str | None = None, split: str | None = None) -> None:
        self.where = " ".join(x for x in (source.id, config, split) if x)
        self.todo = (
            "look at the directory's files"
            if source.local
            else "fetch it once while connected, or give a local directory"
        )

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, VdrError | GeneratorExit) or not isinstance(error, Exception):
            return
        raise BadInput(f"cannot be read ({type(error).__name__}: {error})", where=self.where, todo=self.todo) from error


def read_image(value: Mapping[str, Any] | None) -> Image.Image:
    """Decode an undecoded image cell completely, as RGB. Raises DamagedArtefact, saying why, when there is not one whole
    page in it."""
    content = None if value is None else value.get("bytes")
    path = None if value is None else value.get("path")
    if not content and not path:
        raise DamagedArtefact("no image")
    try:
        return open_page(content or Path(str(path)), "image")
    except BadInput as error:
        raise DamagedArtefact(error.what) from error


def image_bytes(value: Mapping[str, Any]) -> bytes:
    content = value.get("bytes")
    return content if content else Path(value["path"]).read_bytes()


class PageWriter:
    """A pages.parquet being written, a row group at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.writer = pq.ParquetWriter(path, PAGES, compression="none")
        self.waiting: list[dict[str, Any]] = []
        self.count = 0

    def add(self, page_id: str, content: bytes, source: str, sha256: str, split: str) -> None:
        image = {"bytes": content, "path": None}
        self.waiting.append({"page_id": page_id, "image": image, "source": source, "sha256": sha256, "split": split})
        self.count += 1
        if len(self.waiting) == GROUP:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.Table.from_pylist(self.waiting, schema=PAGES))
            self.waiting = []

    def close(self) -> None:
        self.flush()
        self.writer.close()


@dataclass(frozen=True)
class Subset:
    """Which part of a training set is taken: the pages whose hash falls into the first `share` of all hashes, with
    all their queries. Depends on the page alone, so that every subset is contained in every larger one."""

    share: float = 1.0

    def has(self, sha256: str) -> bool:
        return int(sha256[:12], 16) < self.share * 16**12


@dataclass
class _Drops:
    """Rows left out, by reason."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, split: str, row: int, reason: str, detail: str) -> None:
        self.lines.append({"split": split, "row": row, "reason": reason, "detail": " ".join(detail.split())})

    def counts(self) -> dict[str, int]:
        found = pd.Series([line["reason"] for line in self.lines], dtype=object).value_counts()
        return {reason: int(found.get(reason, 0)) for reason in ("no_usable_page", "no_query")}

    def write(self, path: Path) -> None:
        pd.DataFrame(self.lines, columns=["split", "row", "reason", "detail"]).to_csv(
            path, index=False, lineterminator="\n"
        )


def build_train(
    source: HubSource,
    out: Path,
    measures: dict[str, Any],
    *,
    splits: Mapping[str, str] | None = None,
    subset: Subset | None = None,
) -> None:
    """Write `<out>/train/pages.parquet`, `rows.parquet`, `drops.csv` and `report.json` from a ColPali-format
    training set.

    splits: source split → split of the corpus (default: train → train, test → validation). Columns read: image,
    query, and where there are any image_filename and source. A page in two splits belongs to the first; a
    validation row on a page of the training split is dropped from neither, and counted. Raises BadInput for an
    unreadable source, missing columns, or when nothing is left.
    """
    splits = {"train": "train", "test": "validation"} if splits is None else splits
    subset = Subset() if subset is None else subset
    drops, filenames = _Drops(), set()
    pages = PageWriter(Path(out) / "train" / "pages.parquet")
    known: dict[str, tuple[str, str]] = {}  # sha256 -> page id, split
    rows: list[dict[str, Any]] = []
    read = outside = shared = 0
    try:
        for split, name in splits.items():
            columns = source.columns(split)
            needed = ["image", "query", *[c for c in ("image_filename", "source") if c in columns]]
            for index, row in enumerate(track(source.rows(split, columns=needed), f"read {split}", "row")):
                read += 1
                filenames.add(row.get("image_filename"))
                try:
                    sha256 = pixel_hash(read_image(row["image"]))
                except DamagedArtefact as error:
                    drops.add(split, index, "no_usable_page", error.what)
                    continue
                if not subset.has(sha256):
                    outside += 1
                    continue
                query = row["query"]
                if not isinstance(query, str) or not query.strip():
                    drops.add(split, index, "no_query", "empty query")
                    continue
                origin = str(row.get("source") or "unknown")
                if sha256 not in known:
                    known[sha256] = (f"page-{sha256[:20]}", name)
                    pages.add(known[sha256][0], image_bytes(row["image"]), origin, sha256, name)
                shared += known[sha256][1] != name
                row_id = index + _first_row(splits, split)
                rows.append(
                    {
                        "row_id": row_id,
                        "query_id": f"{split}-{index}",
                        "query": query,
                        "page_id": known[sha256][0],
                        "source": origin,
                        "split": name,
                        "breadth": None,
                    }
                )
    finally:
        pages.close()
    if not rows:
        raise BadInput(f"no usable row among {read}", where=source.id, todo="check images and queries")
    frame = pd.DataFrame(rows)
    frame["breadth"] = frame["breadth"].astype(object)
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(table, Path(out) / "train" / "rows.parquet", compression="zstd")
    drops.write(Path(out) / "train" / "drops.csv")
    training = frame[frame["split"] == "train"]
    report = {
        "source": source.id,
        "revision": source.revision,
        "rows_read": read,
        "rows_outside_the_subset": outside,
        "dropped": drops.counts(),
        "image_filenames": len(filenames - {None}),
        "validation_rows_on_training_pages": int(shared),
        "pages_in_all_splits": pages.count,
        **{f"train_{k}": v for k, v in row_statistics(training).items()},
        "rows_by_source": {str(k): int(v) for k, v in training["source"].value_counts().sort_index().items()},
    }
    (Path(out) / "train" / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    measures.update(report)


#: Row ids of later splits start here, so that a row's id does not depend on which splits are read with it.
_SPLIT_STRIDE = 10_000_000


def _first_row(splits: Mapping[str, str], split: str) -> int:
    return list(splits).index(split) * _SPLIT_STRIDE
