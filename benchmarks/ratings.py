"""Ratings per second, and what ordering the queue by page is worth (WT App. J: 5.5 times), in one run.

The profile's teacher rates the same pairs twice: pair by pair in the queries' order, then page by page, where a page's prefix is
computed once for all its queries. Pages and queries are the profile's own; which query meets which page is drawn, as that
does not change what a rating costs. Replies of the two orders are compared: they must be the same.

    python benchmarks/ratings.py [--profile mini] [--pages 6] [--queries 30] [--out benchmarks/results/ratings.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from vdr.corpus.access import load_train
from vdr.corpus.build import build_corpus
from vdr.models.weights import locate
from vdr.provenance import hardware, packages
from vdr.study.settings import load_profile
from vdr.teacher.engines import PagesOf, RatingEngineOf
from vdr.teacher.queue import compare_orders
from vdr.teacher.queue_plan import plan_queue

PAPER = {"speed_up": 5.5, "where": "WT App. J: 3.31 million pairs, the 72B teacher through vLLM on H100s"}


def drawn_pairs(rows: pd.DataFrame, pages: int, queries: int) -> pd.DataFrame:
    """A scored pool of the first ``pages`` pages, each with ``queries`` rows drawn without repetition."""
    rng = np.random.default_rng(0)
    names = rows["page_id"].drop_duplicates().head(pages)
    pairs = [(int(row), name) for name in names for row in rng.choice(rows["row_id"], queries, replace=False)]
    frame = pd.DataFrame(pairs, columns=["row_id", "page_id"])
    return frame.assign(rank=frame.groupby("row_id").cumcount() + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="mini")
    parser.add_argument("--pages", type=int, default=6)
    parser.add_argument("--queries", type=int, default=30, help="queries a page")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ratings.json")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    teacher = locate(profile.models.teacher, profile.models.teacher_revision)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        build_corpus(corpus, profile.corpus, profile.suites, {})
        rows = load_train(corpus).rows
        plan = plan_queue(drawn_pairs(rows, options.pages, options.queries), rows)
        engine = RatingEngineOf(teacher, profile.teacher, profile.hardware)()
        found = compare_orders(plan, engine, PagesOf(corpus)(), options.pages)
    result = {"profile": options.profile, **found, "paper": PAPER, "hardware": hardware(), "packages": packages()}
    print(json.dumps({k: v for k, v in result.items() if not isinstance(v, dict)}))
    if found["replies_that_differ"]:
        sys.exit(f"{found['replies_that_differ']} replies differ between the two orders")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
