import os

import numpy as np
import pandas as pd
import pytest

from vdr.errors import BadInput, DamagedArtefact, VdrError
from vdr.teacher import queue
from vdr.teacher.queue import compare_orders, merge_ratings, plan_queue, rate, rate_shards, read_ratings


def answer(page, query):
    """A rule that a reader can follow: unparseable where the query shouts, else the page's number in the query's
    scale."""
    return "no idea" if query.isupper() else str((int(page[1:]) * 7 + len(query)) % 103)


class Engine:
    def __init__(self, stop_after=None):
        self.calls = []
        self.stop_after = stop_after

    def rate_page(self, page, queries):
        if self.stop_after is not None and len(self.calls) == self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((page, list(queries)))
        return [answer(page, query) for query in queries]


class Batches(Engine):
    def rate_pages(self, pages, queries):
        self.calls.append((list(pages), [list(q) for q in queries]))
        return [[answer(p, q) for q in asked] for p, asked in zip(pages, queries, strict=True)]


def same(page_id):
    return page_id


def make_page_of():
    return same


ROWS = pd.DataFrame(
    {
        "row_id": [0, 1, 2, 3],
        "query": ["date?", "date?", "SHOUT", "who signed?"],
        "source": ["docvqa", "docvqa", "pdf", "pdf"],
    }
)


@pytest.fixture
def scored():
    pages = {0: [5, 1, 2, 3], 1: [1, 5, 2], 2: [4, 3, 1], 3: [3, 4, 5]}
    return pd.DataFrame(
        [(row, f"p{page}", rank) for row, its in pages.items() for rank, page in enumerate(its)],
        columns=["row_id", "page_id", "rank"],
    )


def test_the_queue_goes_by_page_and_joins_equal_prompts(scored, tmp_path):
    engine = Engine()
    plan = plan_queue(scored, ROWS, pages_per_shard=2)
    done = rate_shards(plan, engine, same, tmp_path)
    assert engine.calls == [
        ("p1", ["date?", "SHOUT"]),
        ("p2", ["date?"]),
        ("p3", ["date?", "SHOUT", "who signed?"]),
        ("p4", ["SHOUT", "who signed?"]),
        ("p5", ["date?", "who signed?"]),
    ]
    assert (done["pairs"], done["prompts"], done["pages"]) == (13, 10, 5)


def test_ratings_and_counted_drops(scored, tmp_path):
    rate(plan_queue(scored, ROWS, 2), Engine, make_page_of, tmp_path, measures := {})
    ratings = read_ratings(tmp_path)
    assert list(zip(ratings["row_id"], ratings["rank"], strict=True)) == sorted(
        zip(scored["row_id"], scored["rank"], strict=True)
    )
    query = ROWS.set_index("row_id")["query"]
    for pair in ratings.itertuples():
        assert pair.reply == answer(pair.page_id, query[pair.row_id])
        assert np.isnan(pair.rating) if pair.row_id == 2 else pair.rating == np.float32(int(pair.reply) / 100)
    drops = pd.read_csv(tmp_path / "drops.csv").set_index("source")
    assert drops.loc["docvqa", ["pairs", "unparseable"]].tolist() == [7, 0]
    assert drops.loc["pdf", ["pairs", "unparseable", "no_integer"]].tolist() == [6, 3, 3]
    assert drops.loc["all", "share"] == pytest.approx(3 / 13)
    assert (measures["unparseable"], measures["prompts"], measures["pairs"]) == (3, 10, 13)
    assert measures["timing"]["pairs_per_second"] > 0
    assert not (tmp_path / "partial").exists()


def test_a_rating_above_100_is_dropped_not_clipped(tmp_path):
    scored = pd.DataFrame({"row_id": [3], "page_id": ["p13"], "rank": [1]})  # 13 * 7 + 11 = 102
    rate(plan_queue(scored, ROWS), Engine, make_page_of, tmp_path, measures := {})
    assert np.isnan(read_ratings(tmp_path)["rating"]).all()
    assert measures["drops"][0]["above_100"] == 1
    assert "scale_echoed" not in measures["drops"][0]  # a column where it occurs only


def test_a_reply_that_echoes_the_scale_is_dropped_and_counted(tmp_path):
    class Echoing(Engine):
        def rate_page(self, page, queries):
            return [f"I would say 0-100: {reply}" for reply in super().rate_page(page, queries)]

    scored = pd.DataFrame({"row_id": [3], "page_id": ["p10"], "rank": [1]})
    rate(plan_queue(scored, ROWS), Echoing, make_page_of, tmp_path, measures := {})
    assert np.isnan(read_ratings(tmp_path)["rating"]).all()
    assert measures["drops"][-1]["scale_echoed"] == measures["unparseable"] == 1
    assert pd.read_csv(tmp_path / "drops.csv")["scale_echoed"].tolist() == [1, 1]


@pytest.mark.parametrize("stop_after", [0, 1, 3, 4])
def test_killed_and_restarted_gives_the_same_bytes(scored, tmp_path, stop_after):
    plan = plan_queue(scored, ROWS, 1)
    rate(plan, Engine, make_page_of, tmp_path / "whole", {})
    with pytest.raises(KeyboardInterrupt):
        rate_shards(plan, Engine(stop_after), same, tmp_path / "killed")
    engine = Engine()
    rate(plan, lambda: engine, make_page_of, tmp_path / "killed", measures := {})
    assert len(engine.calls) == 5 - stop_after
    assert measures["timing"]["pairs_rated_here"] < 13 or stop_after == 0
    for name in ("ratings.parquet", "drops.csv", "report.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["drops.csv", "ratings.parquet", "report.json"]


def test_everything_rated_needs_no_engine(scored, tmp_path):
    plan = plan_queue(scored, ROWS, 2)
    rate_shards(plan, Engine(), same, tmp_path)

    def no_engine():
        raise AssertionError("the engine was loaded for nothing")

    rate(plan, no_engine, make_page_of, tmp_path, {})
    assert len(read_ratings(tmp_path)) == 13


def test_two_workers_share_the_shards_and_give_the_same_bytes(scored, tmp_path):
    plan = plan_queue(scored, ROWS, 1)
    rate(plan, Engine, make_page_of, tmp_path / "one", {})
    engines = [Engine(), Engine()]
    for worker in (1, 0):
        rate_shards(plan, engines[worker], same, tmp_path / "two", worker=worker, workers=2)
    assert [[page for page, _ in e.calls] for e in engines] == [["p1", "p3", "p5"], ["p2", "p4"]]
    merge_ratings(plan, tmp_path / "two", {})
    assert (tmp_path / "one/ratings.parquet").read_bytes() == (tmp_path / "two/ratings.parquet").read_bytes()


class Dies(Engine):
    def rate_page(self, page, queries):
        os._exit(9)


@pytest.mark.slow
def test_a_process_that_dies_is_one_clear_error_and_the_pass_resumes(scored, tmp_path):
    plan = plan_queue(scored, ROWS, 1)
    with pytest.raises(VdrError, match="a rating process died"):
        rate(plan, Dies, make_page_of, tmp_path, {}, workers=2)
    rate(plan, Engine, make_page_of, tmp_path, {}, workers=1)
    assert len(read_ratings(tmp_path)) == 13


@pytest.mark.slow
def test_two_processes(scored, tmp_path):
    plan = plan_queue(scored, ROWS, 1)
    rate(plan, Engine, make_page_of, tmp_path / "one", {})
    rate(plan, Engine, make_page_of, tmp_path / "two", measures := {}, workers=2)
    assert measures["timing"]["pairs_rated_here"] == 13
    assert (tmp_path / "one/ratings.parquet").read_bytes() == (tmp_path / "two/ratings.parquet").read_bytes()


def test_an_engine_may_take_a_whole_shard(scored, tmp_path):
    rate(plan_queue(scored, ROWS, 2), Engine, make_page_of, tmp_path / "alone", {})
    engine = Batches()
    rate(plan_queue(scored, ROWS, 2), lambda: engine, make_page_of, tmp_path / "batch", {})
    assert [pages for pages, _ in engine.calls] == [["p1", "p2"], ["p3", "p4"], ["p5"]]
    assert (tmp_path / "alone/ratings.parquet").read_bytes() == (tmp_path / "batch/ratings.parquet").read_bytes()


def test_missing_replies_foreign_parts_and_unknown_rows(scored, tmp_path):
    class Short(Engine):
        def rate_page(self, page, queries):
            return super().rate_page(page, queries)[1:]

    plan = plan_queue(scored, ROWS, 2)
    with pytest.raises(VdrError, match="pages p1 to p2: the teacher gave 1 replies to 3 prompts"):
        rate_shards(plan, Short(), same, tmp_path)
    with pytest.raises(DamagedArtefact, match="another queue"):
        rate_shards(plan_queue(scored, ROWS, 1), Engine(), same, tmp_path)
    with pytest.raises(DamagedArtefact, match="3 of 3 parts are missing"):
        merge_ratings(plan, tmp_path, {})
    with pytest.raises(BadInput, match="row 0 is not in the corpus"):
        plan_queue(scored, ROWS.iloc[1:])
    with pytest.raises(BadInput, match="row 1 has no query"):
        plan_queue(scored, ROWS.assign(query=["a", " ", "b", "c"]))


class Prefix(Engine):
    """Takes a second for a page unless it is the page of the call before; the clock is its own."""

    def __init__(self):
        super().__init__()
        self.last, self.now = None, 0.0

    def rate_page(self, page, queries):
        self.now += page != self.last
        self.last = page
        return super().rate_page(page, queries)


def test_page_order_is_faster_than_query_order_where_the_engine_keeps_a_page(scored, monkeypatch):
    engine = Prefix()
    monkeypatch.setattr(queue.time, "perf_counter", lambda: engine.now)
    result = compare_orders(plan_queue(scored, ROWS, 2), engine, same, pages=5)
    # Ten prompts on five pages; in query order no page follows itself.
    assert (result["query_order_seconds"], result["page_order_seconds"], result["speed_up"]) == (10.0, 5.0, 2.0)
    assert (result["pairs"], result["pages"], result["replies_that_differ"]) == (10, 5, 0)
    assert result["page_order_pairs_per_second"] == 2.0


def test_the_pass_can_time_both_orders(scored, tmp_path):
    rate(plan_queue(scored, ROWS, 2), Engine, make_page_of, tmp_path, measures := {}, compare_pages=2)
    assert measures["timing"]["page_order"]["pages"] == 2
    assert "page_order" not in (tmp_path / "report.json").read_text()


def test_a_note_that_a_kill_left_half_written_does_not_stop_the_next_run(scored, tmp_path):
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial/plan.json").write_text('{"dig')
    rate(plan_queue(scored, ROWS, 2), Engine, make_page_of, tmp_path, {})
    assert len(read_ratings(tmp_path)) == 13
