"""Training rows of an arm: every arm gets the same rows in the same order, and differs in what it hangs on them (WT
§3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from vdr.errors import BadInput
from vdr.mining.files import read_table, write_table
from vdr.study.catalogue import Arm, load_arms
from vdr.study.sections.supervision import SupervisionSettings
from vdr.supervision.maps import PatchMaps, maps_for_rows, write_maps
from vdr.supervision.negatives import select_negatives
from vdr.supervision.rowpools import RowPool, row_pools
from vdr.supervision.statistics import describe_rows
from vdr.supervision.targets import distil

__all__ = ["ROWS", "build_rows", "read_rows"]

#: rows.parquet, sorted by row_id. negatives: empty but for arms with negatives, in the order of choice; filled: how
#: many of them, the last ones, are back-fill. candidates and targets: empty but for arms with targets; up to four, the
#: labelled page possibly among them. target_weight: 1, or 0 where the row's distillation loss is zeroed (averages still
#: run over all rows of a batch).
ROWS = pa.schema(
    [
        ("row_id", pa.int64()),
        ("query", pa.string()),
        ("page_id", pa.string()),
        ("source", pa.string()),
        ("negatives", pa.list_(pa.string())),
        ("filled", pa.int32()),
        ("candidates", pa.list_(pa.string())),
        ("targets", pa.list_(pa.float32())),
        ("target_weight", pa.float32()),
        ("description", pa.string()),
    ]
)


def build_rows(
    arm: Arm,
    rows: pd.DataFrame,
    pools: pd.DataFrame | None,
    scored: pd.DataFrame | None,
    ratings: pd.DataFrame | None,
    maps: PatchMaps | None,
    descriptions: pd.DataFrame | None,
    seed: int,
    out: Path,
    settings: SupervisionSettings,
    measures: dict[str, Any],
    *,
    student_grid: Callable[[str], tuple[int, int]] | None = None,
) -> None:
    """Write an arm's `rows.parquet` (see ROWS), `maps.npz` where it uses attention, and `report.json`.

    rows: row_id, query, page_id (the labelled page), source: the training rows, one split. pools, scored: what was
    mined for exactly these rows; ratings: of every scored pair (the teacher's, or an oracle's); each may be None
    where the arm does not read it. seed enters S's draw alone: row ids, queries and labelled pages are the same for
    every arm and seed. student_grid: (rows, columns) of a page's image tokens in the student; needed where the arm
    uses maps. Raises BadInput where something the arm reads is missing or is about other rows.
    """
    out = Path(out)
    frame = (
        rows.sort_values("row_id", kind="stable")
        .reset_index(drop=True)[["row_id", "query", "page_id", "source"]]
        .copy()
    )
    count = len(frame)
    empty: list[list[Any]] = [[] for _ in range(count)]
    frame["negatives"], frame["candidates"], frame["targets"] = empty, empty, empty
    frame["filled"], frame["target_weight"], frame["description"] = 0, 0.0, None
    report: dict[str, Any] = {"arm": arm.name, "seed": seed, "rows": count}
    by_row: dict[int, RowPool] = {}
    if arm.negatives is not None or arm.targets is not None:
        by_row = _pools(arm, frame, pools, scored, ratings)
    if arm.negatives is not None:
        match = load_arms()[arm.negatives.match].negatives if arm.negatives.rule == "perc_matched" else None
        chosen, report["rule"] = select_negatives(arm.negatives, by_row, match)
        frame["negatives"] = [[by_row[r].pages[i] for i in chosen[r].chosen] for r in frame["row_id"]]
        frame["filled"] = [chosen[r].filled for r in frame["row_id"]]
        _never_its_own(frame)
    if arm.targets is not None:
        rule = arm.targets
        taken = [
            distil(by_row[r], rule.rule, rule.count, rule.threshold, seed, settings.distil_labelled)
            for r in frame["row_id"]
        ]
        frame["candidates"] = [d.pages for d in taken]
        frame["targets"] = [d.targets for d in taken]
        frame["target_weight"] = [d.weight for d in taken]
    if arm.descriptions:
        frame["description"] = _descriptions(frame, descriptions, report)
    if arm.maps:
        if maps is None or student_grid is None:
            raise BadInput(
                f"arm {arm.name} reads attention maps and none were given", where="maps", todo="extract them"
            )
        own = maps_for_rows(maps, frame["row_id"].tolist(), frame["page_id"].tolist(), student_grid)
        report["maps_without_mass"] = int(sum(float(m.sum()) == 0.0 for m in own.maps))
        out.mkdir(parents=True, exist_ok=True)
        write_maps(out / "maps.npz", own)
    write_table(out / "rows.parquet", frame, ROWS)
    report.update(describe_rows(frame, by_row, rows))
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    measures.update(report)


def _pools(
    arm: Arm, frame: pd.DataFrame, pools: pd.DataFrame | None, scored: pd.DataFrame | None, ratings: pd.DataFrame | None
) -> dict[int, RowPool]:
    if pools is None or scored is None:
        raise BadInput(f"arm {arm.name} reads mined candidates and none were given", where="pools", todo="mine them")
    if (arm.uses_ratings or arm.targets is not None) and ratings is None:
        raise BadInput(
            f"arm {arm.name} reads ratings and none were given", where="ratings", todo="rate the scored pool"
        )
    by_row = row_pools(scored, ratings, pools)
    if set(by_row) != set(frame["row_id"]):
        raise BadInput(
            "scored pool and rows are not about the same rows", where="scored_pool.row_id", todo="mine these rows"
        )
    other = [r for r, page in zip(frame["row_id"], frame["page_id"], strict=True) if by_row[r].labelled != page]
    if other:
        raise BadInput(
            f"row {other[0]} is labelled with another page than in the scored pool",
            where="rows.page_id",
            todo="mine again",
        )
    return by_row


def _never_its_own(frame: pd.DataFrame) -> None:
    for row_id, page, negatives in zip(frame["row_id"], frame["page_id"], frame["negatives"], strict=True):
        if page in negatives or len(set(negatives)) != len(negatives):
            raise BadInput(
                f"row {row_id} has its labelled page, or a page twice, among its negatives", where="scored_pool"
            )


def _descriptions(frame: pd.DataFrame, descriptions: pd.DataFrame | None, report: dict[str, Any]) -> list[str | None]:
    if descriptions is None:
        raise BadInput("the arm reads descriptions and none were given", where="descriptions", todo="have them written")
    if descriptions["row_id"].duplicated().any():
        raise BadInput("a row has two descriptions", where="descriptions.row_id", todo="keep one")
    known = dict(zip(descriptions["row_id"], descriptions["description"], strict=True))
    missing = [r for r in frame["row_id"] if r not in known]
    if missing:
        raise BadInput(
            f"{len(missing)} rows have no description, e.g. row {missing[0]}",
            where="descriptions",
            todo="have them written",
        )
    texts = [known[r] for r in frame["row_id"]]
    # A teacher may write nothing: the row then trains without the term, and the report says how many do.
    out = [t.strip() if isinstance(t, str) and t.strip() else None for t in texts]
    report["rows_with_an_empty_description"] = sum(t is None for t in out)
    return out


def read_rows(where: Path) -> pd.DataFrame:
    """Rows of an artefact directory (or of the file itself); list columns come as Python lists."""
    where = Path(where)
    frame = read_table(where / "rows.parquet" if where.is_dir() else where, ROWS, "build the rows again")
    for name in ("negatives", "candidates", "targets"):
        frame[name] = [np.asarray(value).tolist() for value in frame[name]]
    return frame
