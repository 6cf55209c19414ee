"""The scored pool: the 28 candidates of a row that the teacher rates, and the labelled page (WT §5, App. O).

Ranks count positions in the mined pool with the row's own labelled page left out, though not pages that other rows
with the same query string are labelled with (§5). Ranks 1–20 are all scored; of each ten ranks from 21 to 100 one
is drawn, uniformly and seeded by row and band: Appendix O calls the rate over these eight a stratified estimate of
the whole band, which a fixed position would not give. A band that holds fewer ranks (a small corpus, or the pool's
last band, from which the labelled page was left out) is drawn from what it holds; a band without any is left out
and counted. The labelled page enters as rank 0 whether or not the miner found it, so that its rating can be
compared with its candidates'.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from vdr.errors import BadInput
from vdr.mining.draws import draw
from vdr.mining.files import write_scored_pool
from vdr.study.sections.mining import MiningSettings

__all__ = ["build_scored_pool", "scored_pool", "scored_ranks"]


def scored_ranks(available: int, row_id: int, settings: MiningSettings) -> list[int]:
    """The ranks scored for a row that has `available` candidates besides its labelled page, ascending.

    >>> len(scored_ranks(99, 7, MiningSettings()))
    28
    """
    ranks = list(range(1, min(settings.top, available) + 1))
    for band, first in enumerate(range(settings.top + 1, settings.last_rank + 1, settings.band)):
        held = min(first + settings.band - 1, settings.last_rank, available) - first + 1
        if held > 0:
            ranks.append(first + draw(held, "scored band", settings.draw_seed, row_id, band))
    return ranks


def scored_pool(pools: pd.DataFrame, rows: pd.DataFrame, settings: MiningSettings) -> pd.DataFrame:
    """The scored pool of every row (columns of `vdr.mining.files`), sorted by row_id and rank.

    pools: see `vdr.mining.files`; rows: row_id and page_id. Raises BadInput where rows and pools are not about the
    same rows.
    """
    labelled = rows.set_index("row_id")["page_id"]
    if not labelled.index.is_unique or set(labelled.index) != set(pools["row_id"]):
        raise BadInput("rows and pools are not about the same rows", where="pools.row_id", todo="mine these rows")
    out: dict[str, list[Any]] = {"row_id": [], "page_id": [], "rank": [], "score": []}
    for pool in pools.sort_values("row_id", kind="stable").itertuples(index=False):
        own = labelled[pool.row_id]
        others = [(page, score) for page, score in zip(pool.candidates, pool.scores, strict=True) if page != own]
        chosen = scored_ranks(len(others), int(pool.row_id), settings)
        picked = [(own, 0, pool.labelled_score)] + [(others[r - 1][0], r, others[r - 1][1]) for r in chosen]
        for page, rank, score in picked:
            out["row_id"].append(pool.row_id)
            out["page_id"].append(page)
            out["rank"].append(rank)
            out["score"].append(score)
    return pd.DataFrame(out).astype({"row_id": "int64", "rank": "int32", "score": "float32"})


def build_scored_pool(
    pools: pd.DataFrame, rows: pd.DataFrame, settings: MiningSettings, out: Path, measures: dict[str, Any]
) -> None:
    """Write `out/scored_pool.parquet` and `out/report.json`; counts go to `measures` too."""
    scored = scored_pool(pools, rows, settings)
    write_scored_pool(Path(out), scored)
    sizes = scored[scored["rank"] > 0].groupby("row_id").size().reindex(pools["row_id"], fill_value=0)
    full = len(scored_ranks(settings.last_rank, 0, settings))
    report = {
        "rows": len(pools),
        "pairs": len(scored),
        "candidates_per_row": full,
        "rows_with_fewer_candidates": int((sizes < full).sum()),
        "fewest_candidates": int(sizes.min()) if len(sizes) else 0,
        "rows_whose_labelled_page_was_not_mined": int((pools["labelled_rank"] < 0).sum()),
        "draw": "one uniform draw per band and row",
    }
    (Path(out) / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    measures.update(report)
