"""The rating pass (WT App. B, J): the scored pool turned round into a queue by page, rated in shards, resumable.

A page stands before the query in the prompt, so an engine that keeps the page's prefix pays for it once if all
queries of a page come together. The queue is therefore ordered by page id, and by row id inside a page; a (page,
query string) prompt that several rows share is asked once. A shard is a fixed run of whole pages, whatever process
rates it and however often the pass was stopped: a shard on disk is not rated again, and an engine sees the same
batches every time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import pyarrow as pa

from vdr.errors import BadInput, DamagedArtefact, VdrError
from vdr.mining.files import claim_parts, read_table, write_table
from vdr.progress import track
from vdr.teacher.parsing import read_rating

__all__ = [
    "RATINGS",
    "BatchRatingEngine",
    "QueuePlan",
    "RatingEngine",
    "compare_orders",
    "merge_ratings",
    "plan_queue",
    "rate",
    "rate_shards",
    "read_ratings",
]

PARTS = "partial"

#: ratings.parquet, sorted by row_id and rank; rating is NaN where the reply is unparseable.
RATINGS = pa.schema(
    [
        ("row_id", pa.int64()),
        ("page_id", pa.string()),
        ("rank", pa.int32()),
        ("rating", pa.float32()),
        ("reply", pa.string()),
    ]
)


class RatingEngine(Protocol):
    """A teacher that answers the rating prompt of App. B: in this process, or behind an OpenAI-compatible server.

    An engine is deterministic (greedy decoding). It may keep a page's prefix between calls; nothing else carries
    over.
    """

    def rate_page(self, page: Any, queries: list[str]) -> list[str]:
        """The raw reply for each query about one page, in order. Raises VdrError where the teacher cannot answer."""
        ...


@runtime_checkable
class BatchRatingEngine(Protocol):
    """An engine that is faster when it gets several pages at once (batches in this process, requests in flight at a
    server)."""

    def rate_page(self, page: Any, queries: list[str]) -> list[str]: ...

    def rate_pages(self, pages: Sequence[Any], queries: Sequence[list[str]]) -> list[list[str]]:
        """Replies for each page's queries, in order."""
        ...


@dataclass(frozen=True)
class QueuePlan:
    """pairs: row_id, page_id, rank, query, source, in queue order; shards: (first, end) positions in pairs, whole
    pages each."""

    pairs: pd.DataFrame
    shards: list[tuple[int, int]]
    digest: str

    def pages(self, shard: int) -> Iterator[tuple[str, pd.DataFrame]]:
        """The pages of a shard with their pairs, in queue order."""
        first, end = self.shards[shard]
        part = self.pairs.iloc[first:end]
        for page_id, pairs in part.groupby("page_id", sort=False):
            yield str(page_id), pairs


def plan_queue(scored: pd.DataFrame, rows: pd.DataFrame, pages_per_shard: int = 16) -> QueuePlan:
    """The queue of a scored pool. rows: row_id, query, source.

    Raises BadInput for a pair whose row is unknown, or a row without a query.
    """
    known = rows.set_index("row_id")[["query", "source"]]
    strange = scored.loc[~scored["row_id"].isin(known.index), "row_id"]
    if len(strange):
        raise BadInput(
            f"row {strange.iloc[0]} is not in the corpus", where="scored_pool.row_id", todo="mine this corpus"
        )
    pairs = scored[["row_id", "page_id", "rank"]].join(known, on="row_id")
    blank = pairs.loc[pairs["query"].isna() | (pairs["query"].str.strip() == ""), "row_id"]
    if len(blank):
        raise BadInput(f"row {blank.iloc[0]} has no query", where="rows.query", todo="drop it from the corpus")
    pairs = pairs.sort_values(["page_id", "row_id"], kind="stable").reset_index(drop=True)
    starts = np.flatnonzero((pairs["page_id"] != pairs["page_id"].shift()).to_numpy())
    cuts = [*starts[::pages_per_shard].tolist(), len(pairs)]
    text = "\n".join(pairs["page_id"] + "\t" + pairs["row_id"].astype(str) + "\t" + pairs["query"])
    digest = hashlib.sha256(f"{pages_per_shard}\n{text}".encode()).hexdigest()
    return QueuePlan(pairs, list(pairwise(cuts)) if len(pairs) else [], digest)


def _replies(engine: RatingEngine, pages: list[Any], names: list[str], queries: list[list[str]]) -> list[list[str]]:
    if isinstance(engine, BatchRatingEngine):
        replies = engine.rate_pages(pages, queries)
    else:
        replies = [engine.rate_page(page, asked) for page, asked in zip(pages, queries, strict=True)]
    if [len(r) for r in replies] != [len(q) for q in queries]:
        what = f"the teacher gave {sum(map(len, replies))} replies to {sum(map(len, queries))} prompts"
        raise VdrError(what, where=f"pages {names[0]} to {names[-1]}", todo="look at the engine")
    return replies


def _part(out: Path, shard: int) -> Path:
    return Path(out) / PARTS / f"ratings-{shard:06d}.parquet"


def rate_shards(
    plan: QueuePlan,
    engine: RatingEngine,
    page_of: Callable[[str], Any],
    out: Path,
    *,
    worker: int = 0,
    workers: int = 1,
) -> dict[str, float]:
    """Rate this worker's shards (every `workers`-th) that are not yet in `out/partial`; returns what was done here.

    page_of gives what the engine wants for a page id: an image, or features. The result has `pairs`, `prompts`
    (after equal prompts were joined), `pages` and `seconds` (the engine's and page_of's time).
    Raises DamagedArtefact where `out/partial` belongs to another queue, VdrError where replies are missing.
    """
    claim_parts(Path(out) / PARTS, {"digest": plan.digest}, "queue")
    done = {"pairs": 0.0, "prompts": 0.0, "pages": 0.0, "seconds": 0.0}
    todo = [s for s in range(len(plan.shards)) if s % workers == worker and not _part(out, s).exists()]
    with track(sum(plan.shards[s][1] - plan.shards[s][0] for s in todo), "rate", "pair") as bar:
        for shard in todo:
            started = time.perf_counter()
            groups = list(plan.pages(shard))
            names = [name for name, _ in groups]
            queries = [list(dict.fromkeys(pairs["query"])) for _, pairs in groups]
            replies = _replies(engine, [page_of(name) for name in names], names, queries)
            done["seconds"] += time.perf_counter() - started
            frames = []
            for (_, pairs), asked, given in zip(groups, queries, replies, strict=True):
                answer = dict(zip(asked, given, strict=True))
                reply = [answer[query] for query in pairs["query"]]
                rating = [read_rating(text).value for text in reply]
                columns = {"rating": np.array([np.nan if r is None else r for r in rating]), "reply": reply}
                frames.append(pairs[["row_id", "page_id", "rank"]].assign(**columns))
            write_table(_part(out, shard), pd.concat(frames, ignore_index=True), RATINGS)
            size = plan.shards[shard][1] - plan.shards[shard][0]
            done["pairs"] += size
            done["prompts"] += sum(map(len, queries))
            done["pages"] += len(groups)
            bar.update(size)
    return done


def merge_ratings(plan: QueuePlan, out: Path, measures: dict[str, Any]) -> None:
    """Join the parts into `out/ratings.parquet`, `out/drops.csv` (unparseable replies by source) and
    `out/report.json`.

    The parts are removed. Raises DamagedArtefact when one is missing.
    """
    out = Path(out)
    absent = [s for s in range(len(plan.shards)) if not _part(out, s).exists()]
    if absent:
        what = f"{len(absent)} of {len(plan.shards)} parts are missing"
        raise DamagedArtefact(what, where=out / PARTS, todo="run the rating pass again")
    parts = [read_table(_part(out, s), RATINGS) for s in range(len(plan.shards))]
    ratings = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=RATINGS.names)
    source = plan.pairs["source"].to_numpy()
    drops = _drops(ratings, source)
    ratings = ratings.sort_values(["row_id", "rank"], kind="stable").reset_index(drop=True)
    write_table(out / "ratings.parquet", ratings, RATINGS)
    drops.to_csv(out / "drops.csv", index=False, lineterminator="\n")
    total = drops.iloc[-1]
    prompts = len(plan.pairs.drop_duplicates(["page_id", "query"]))
    report = {
        "pairs": int(total["pairs"]),
        "prompts": prompts,
        "pages": int(plan.pairs["page_id"].nunique()),
        "unparseable": int(total["unparseable"]),
        "unparseable_share": float(total["share"]),
        "queue_order": "page id, then row id",
    }
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    measures.update(report)
    measures["drops"] = drops.to_dict("records")
    shutil.rmtree(out / PARTS, ignore_errors=True)


def _drops(ratings: pd.DataFrame, source: np.ndarray) -> pd.DataFrame:
    """source, pairs, unparseable, share, and a column per reason; the last line is `all`."""
    reasons = ["no_integer", "not_an_integer", "negative", "above_100"]
    missing = ratings["rating"].isna()
    kind = pd.Series("", index=ratings.index)
    kind[missing] = [read_rating(reply).reason for reply in ratings.loc[missing, "reply"]]
    table = pd.DataFrame({"source": source, "pairs": 1, "unparseable": missing.astype(int)})
    for reason in reasons:
        table[reason] = (kind == reason).astype(int)
    by_source = table.groupby("source").sum()
    by_source.loc["all"] = by_source.sum()
    by_source.insert(2, "share", by_source["unparseable"] / by_source["pairs"].clip(lower=1))
    return by_source.astype({"pairs": int, "unparseable": int, **dict.fromkeys(reasons, int)}).reset_index()


def rate(
    plan: QueuePlan,
    make_engine: Callable[[], RatingEngine],
    make_page_of: Callable[[], Callable[[str], Any]],
    out: Path,
    measures: dict[str, Any],
    *,
    workers: int = 1,
) -> None:
    """The whole pass: rate what is missing, in this process or in `workers` fresh ones, then merge.

    make_engine and make_page_of are called once a process (and must be picklable for workers > 1). Files do not
    depend on `workers` as long as the engine's replies do not. Measures: pairs_per_second, prompts_per_second (of
    this call's work).
    """
    started = time.perf_counter()
    if workers == 1:
        needed = any(not _part(out, s).exists() for s in range(len(plan.shards)))
        parts = [rate_shards(plan, make_engine(), make_page_of(), out)] if needed else []
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = [pool.submit(_work, plan, make_engine, make_page_of, out, w, workers) for w in range(workers)]
            parts = [job.result() for job in jobs]
    wall = time.perf_counter() - started
    pairs = sum(part["pairs"] for part in parts)
    timing = measures.setdefault("timing", {})
    timing["workers"] = workers
    timing["pairs_rated_here"] = int(pairs)
    timing["seconds_rating"] = wall
    busy = max((part["seconds"] for part in parts), default=0.0)
    if pairs:
        timing["pairs_per_second"] = pairs / busy
        timing["prompts_per_second"] = sum(part["prompts"] for part in parts) / busy
    merge_ratings(plan, out, measures)


def _work(
    plan: QueuePlan,
    make_engine: Callable[[], RatingEngine],
    make_page_of: Callable[[], Callable[[str], Any]],
    out: Path,
    worker: int,
    workers: int,
) -> dict[str, float]:
    return rate_shards(plan, make_engine(), make_page_of(), out, worker=worker, workers=workers)


def compare_orders(
    plan: QueuePlan, engine: RatingEngine, page_of: Callable[[str], Any], pages: int = 4
) -> dict[str, Any]:
    """Time the same pairs in page order and in query order (App. J's speed-up; 5.5 in the paper), on the first
    `pages` pages.

    Page order hands over a page with all its queries; query order asks pair by pair, rows in order, so that a page
    never follows itself unless a row holds it twice. Query order runs first: what a run warms up profits page order
    only by one page. Returns pairs, seconds and pairs per second for both, the speed-up, and how many replies
    differed (0 for a sound engine).
    """
    names = plan.pairs["page_id"].drop_duplicates().head(pages)
    sample = plan.pairs[plan.pairs["page_id"].isin(names)].drop_duplicates(["page_id", "query"])
    by_query = sample.sort_values(["row_id", "rank"], kind="stable")
    engine.rate_page(
        page_of(str(sample["page_id"].iloc[0])), [str(sample["query"].iloc[0])]
    )  # the first call may compile
    started = time.perf_counter()
    alone = {
        (pair.page_id, pair.query): engine.rate_page(page_of(pair.page_id), [pair.query])[0]
        for pair in by_query.itertuples()
    }
    seconds_query = time.perf_counter() - started
    started = time.perf_counter()
    groups = [(str(name), list(pairs["query"])) for name, pairs in sample.groupby("page_id", sort=False)]
    replies = _replies(engine, [page_of(name) for name, _ in groups], [n for n, _ in groups], [q for _, q in groups])
    seconds_page = time.perf_counter() - started
    together = {
        (name, query): reply
        for (name, asked), given in zip(groups, replies, strict=True)
        for query, reply in zip(asked, given, strict=True)
    }
    return {
        "pairs": len(sample),
        "pages": len(groups),
        "page_order_seconds": seconds_page,
        "query_order_seconds": seconds_query,
        "page_order_pairs_per_second": len(sample) / seconds_page,
        "query_order_pairs_per_second": len(sample) / seconds_query,
        "speed_up": seconds_query / seconds_page,
        "replies_that_differ": sum(together[key] != alone[key] for key in alone),
    }


def read_ratings(where: Path) -> pd.DataFrame:
    """Ratings of an artefact directory (or of the file itself)."""
    where = Path(where)
    return read_table(where / "ratings.parquet" if where.is_dir() else where, RATINGS, "rate again")
