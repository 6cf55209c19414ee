"""The two tables that mining writes, with their columns checked on reading.

pools.parquet: row_id int64, candidates list[str] (MaxSim descending, page id ascending among equals), scores
list[float32], labelled_rank int32 (1-based position of the row's labelled page in its own pool, -1 where the miner
did not find it), labelled_score float32 (its MaxSim score, found or not).

scored_pool.parquet: row_id int64, page_id str, rank int32 (1-based position with the row's labelled page left out;
0 is the labelled page itself), score float32. Sorted by row_id, then rank.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vdr.errors import DamagedArtefact

__all__ = [
    "POOLS",
    "SCORED_POOL",
    "claim_parts",
    "read_pools",
    "read_scored_pool",
    "read_table",
    "write_pools",
    "write_scored_pool",
    "write_table",
]

POOLS = pa.schema(
    [
        ("row_id", pa.int64()),
        ("candidates", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("labelled_rank", pa.int32()),
        ("labelled_score", pa.float32()),
    ]
)
SCORED_POOL = pa.schema(
    [("row_id", pa.int64()), ("page_id", pa.string()), ("rank", pa.int32()), ("score", pa.float32())]
)


def write_table(path: Path, frame: pd.DataFrame, schema: pa.Schema) -> None:
    """Write `frame` under `schema`, beside and then renamed; the same rows give the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False).replace_schema_metadata(None)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        pq.write_table(table, beside, compression="zstd")
        with beside.open("rb+") as handle:
            os.fsync(handle.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_table(path: Path, schema: pa.Schema, todo: str = "make this artefact again") -> pd.DataFrame:
    """Read a table and check its columns. Raises DamagedArtefact naming the file and what is wrong."""
    path = Path(path)
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DamagedArtefact(f"cannot be read as parquet ({error})", where=path, todo=todo) from error
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise DamagedArtefact(f"columns missing: {', '.join(missing)}", where=path, todo=todo)
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise DamagedArtefact(f"columns of other types than expected ({error})", where=path, todo=todo) from error
    return table.to_pandas()


def claim_parts(directory: Path, plan: dict[str, Any], what: str) -> None:
    """Note in `directory` which work its parts belong to. Raises DamagedArtefact where that is other work than
    `plan`.

    A note that a kill left half-written counts as none: parts are written after it.
    """
    path = Path(directory) / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        beside = path.with_name(f".{path.name}.{os.getpid()}.new")
        beside.write_text(json.dumps(plan), encoding="utf-8")
        os.replace(beside, path)
        return
    if found != plan:
        raise DamagedArtefact(
            f"holds parts of another {what}", where=directory, todo="delete this directory and run again"
        )


def _inside(where: Path, name: str) -> Path:
    where = Path(where)
    return where / name if where.is_dir() else where


def write_pools(directory: Path, pools: pd.DataFrame) -> None:
    write_table(Path(directory) / "pools.parquet", pools, POOLS)


def read_pools(where: Path) -> pd.DataFrame:
    """Pools of an artefact directory (or of the file itself)."""
    return read_table(_inside(where, "pools.parquet"), POOLS, "mine again")


def write_scored_pool(directory: Path, scored: pd.DataFrame) -> None:
    write_table(Path(directory) / "scored_pool.parquet", scored, SCORED_POOL)


def read_scored_pool(where: Path) -> pd.DataFrame:
    """The scored pool of an artefact directory (or of the file itself)."""
    return read_table(_inside(where, "scored_pool.parquet"), SCORED_POOL, "mine again")
