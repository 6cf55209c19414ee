"""The rating pass (WT App. B, J): the scored pool turned round into a queue by page, rated in shards, resumable.

A page stands before the query in the prompt, so an engine that keeps the page's prefix pays for it once if all
queries of a page come together. The queue is therefore ordered by page id, and by row id inside a page; a (page,
query string) prompt that several rows share is asked once. A shard is a fixed run of whole pages, whatever process
rates it and however often the pass was stopped: a shard on disk is not rated again, and an engine sees the same
batches every time.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from vdr.children import FreshProcesses
from vdr.errors import DamagedArtefact, VdrError
from vdr.mining.files import claim_parts, read_table, write_table
from vdr.progress import PROGRESS_FILE, read_progress_file, track
from vdr.teacher.parsing import REASONS, read_rating
from vdr.teacher.queue_plan import BatchRatingEngine, QueuePlan, RatingEngine, plan_queue

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
    missing = ratings["rating"].isna()
    kind = pd.Series("", index=ratings.index)
    kind[missing] = [read_rating(reply).reason for reply in ratings.loc[missing, "reply"]]
    table = pd.DataFrame({"source": source, "pairs": 1, "unparseable": missing.astype(int)})
    # The scale echoed is rare and has a column where it occurs, so that runs without it keep the bytes they always had.
    reasons = [reason for reason in REASONS if reason != "scale_echoed" or (kind == reason).any()]
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
    compare_pages: int = 0,
) -> None:
    """The whole pass: rate what is missing, in this process or in `workers` fresh ones, then merge.

    make_engine and make_page_of are called once a process (and must be picklable for workers > 1). Files do not
    depend on `workers` as long as the engine's replies do not. compare_pages: time page order against query order
    on so many pages afterwards. measures["timing"]: pairs_per_second, prompts_per_second (of this call's work),
    page_order. Raises what `rate_shards` raises, and VdrError where a process dies.
    """
    started = time.perf_counter()
    missing = [s for s in range(len(plan.shards)) if not _part(out, s).exists()]
    if not missing:
        parts = []
    elif workers == 1:
        parts = [rate_shards(plan, make_engine(), make_page_of(), out)]
    else:
        parts = _rate_in_processes(plan, make_engine, make_page_of, Path(out), workers, missing)
    wall = time.perf_counter() - started
    pairs = sum(part["pairs"] for part in parts)
    timing = measures.setdefault("timing", {})
    timing.update(workers=workers, pairs_rated_here=int(pairs), seconds_rating=wall)
    busy = max((part["seconds"] for part in parts), default=0.0)
    if pairs:
        timing["pairs_per_second"] = pairs / busy
        timing["prompts_per_second"] = sum(part["prompts"] for part in parts) / busy
    if compare_pages and len(plan.pairs):
        timing["page_order"] = compare_orders(plan, make_engine(), make_page_of(), compare_pages)
    merge_ratings(plan, out, measures)


def _rate_in_processes(
    plan: QueuePlan,
    make_engine: Callable[[], RatingEngine],
    make_page_of: Callable[[], Callable[[str], Any]],
    out: Path,
    workers: int,
    missing: list[int],
) -> list[dict[str, float]]:
    """Rate with fresh processes; this one shows their progress together."""
    claim_parts(out / PARTS, {"digest": plan.digest}, "queue")  # before anybody can write a part
    files = [out / PARTS / f"progress-{worker}.json" for worker in range(workers)]
    for file in files:
        file.unlink(missing_ok=True)
    total = sum(plan.shards[s][1] - plan.shards[s][0] for s in missing)
    try:
        with (
            FreshProcesses(workers) as pool,
            track(total, "rate", "pair") as bar,
        ):
            jobs = [
                pool.submit(_work, plan, make_engine, make_page_of, out, w, workers, files[w]) for w in range(workers)
            ]
            waiting = set(jobs)
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
                said = [read_progress_file(file) or {} for file in files]
                bar.set(int(sum(float(str(state.get("done", 0))) for state in said)))
                for job in done:
                    job.result()
            return [job.result() for job in jobs]
    except BrokenProcessPool as error:
        raise VdrError(
            "a rating process died", where=out, todo="look for a lack of memory, then run again: it resumes"
        ) from error


def _work(
    plan: QueuePlan,
    make_engine: Callable[[], RatingEngine],
    make_page_of: Callable[[], Callable[[str], Any]],
    out: Path,
    worker: int,
    workers: int,
    progress: Path,
) -> dict[str, float]:
    os.environ[PROGRESS_FILE] = str(progress)
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
