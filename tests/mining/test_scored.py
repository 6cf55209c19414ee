import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdr.errors import BadInput
from vdr.mining import build_scored_pool, read_scored_pool, scored_pool
from vdr.mining.scored import scored_ranks
from vdr.study.sections.mining import MiningSettings

SETTINGS = MiningSettings()


def pool(row_id, pages, labelled, score=9.5):
    rank = pages.index(labelled) + 1 if labelled in pages else -1
    return {
        "row_id": row_id,
        "candidates": pages,
        "scores": [100.0 - i for i in range(len(pages))],
        "labelled_rank": rank,
        "labelled_score": 100.0 - (rank - 1) if rank > 0 else score,
    }


def test_twenty_first_ranks_and_one_of_each_ten():
    pages = [f"p{i:03d}" for i in range(100)]
    pools = pd.DataFrame([pool(4, pages, "gold"), pool(2, pages, "p002")])
    rows = pd.DataFrame({"row_id": [2, 4], "page_id": ["p002", "gold"]})
    scored = scored_pool(pools, rows, SETTINGS)
    assert list(scored["row_id"]) == [2] * 29 + [4] * 29

    found = scored[scored["row_id"] == 2]
    assert found.iloc[0].to_dict() == {"row_id": 2, "page_id": "p002", "rank": 0, "score": 98.0}
    # Ranks are counted with the labelled page (third in the pool) left out: p003 stands at rank 3.
    by_rank = found.set_index("rank")["page_id"]
    assert list(by_rank[1:6]) == ["p000", "p001", "p003", "p004", "p005"]
    deep = [r for r in by_rank.index if r > 20]
    assert [(r - 21) // 10 for r in deep] == list(range(8))
    assert all(by_rank[r] == f"p{r:03d}" for r in deep)
    assert "p002" not in set(by_rank[1:])

    lost = scored[scored["row_id"] == 4]
    assert lost.iloc[0].to_dict() == {"row_id": 4, "page_id": "gold", "rank": 0, "score": 9.5}
    assert list(lost["page_id"][1:21]) == pages[:20]


def test_a_page_labelled_in_another_row_of_the_same_query_keeps_its_rank():
    pages = ["x", "y", "z"]
    pools = pd.DataFrame([pool(0, pages, "x"), pool(1, pages, "y")])
    rows = pd.DataFrame({"row_id": [0, 1], "query": ["what is the date?"] * 2, "page_id": ["x", "y"]})
    scored = scored_pool(pools, rows, SETTINGS)
    assert list(scored.loc[scored["row_id"] == 0, "page_id"]) == ["x", "y", "z"]
    assert list(scored.loc[scored["row_id"] == 1, "page_id"]) == ["y", "x", "z"]


@given(st.integers(0, 130), st.integers(0, 10**6))
def test_any_pool_size(available, row_id):
    ranks = scored_ranks(available, row_id, SETTINGS)
    assert ranks == sorted(set(ranks))
    assert ranks[:20] == list(range(1, min(available, 20) + 1))
    assert all(1 <= r <= min(available, 100) for r in ranks)
    # One of every band that holds anything: the last band of 99 has nine ranks.
    assert len(ranks) == min(available, 20) + max(0, -(-(min(available, 100) - 20) // 10))


def test_every_rank_of_a_band_is_drawn_about_equally_often():
    drawn = pd.Series([scored_ranks(100, row, SETTINGS)[20] for row in range(2000)]).value_counts()
    assert set(drawn.index) == set(range(21, 31))
    assert drawn.min() > 150
    assert drawn.max() < 250


def test_draw_seed_moves_the_deep_ranks_alone():
    a, b = (scored_ranks(100, 5, MiningSettings(draw_seed=s)) for s in (0, 1))
    assert a[:20] == b[:20]
    assert a != b


def test_file_report_and_bytes(tmp_path):
    pools = pd.DataFrame([pool(0, ["a", "b", "c"], "b"), pool(1, [f"p{i:03d}" for i in range(100)], "gone")])
    rows = pd.DataFrame({"row_id": [0, 1], "page_id": ["b", "gone"]})
    for name in ("one", "two"):
        build_scored_pool(pools, rows, SETTINGS, tmp_path / name, measures := {})
    assert (tmp_path / "one/scored_pool.parquet").read_bytes() == (tmp_path / "two/scored_pool.parquet").read_bytes()
    assert len(read_scored_pool(tmp_path / "one")) == 3 + 29
    assert measures["rows_with_fewer_candidates"] == 1
    assert measures["fewest_candidates"] == 2
    assert measures["rows_whose_labelled_page_was_not_mined"] == 1


def test_rows_that_do_not_fit():
    pools = pd.DataFrame([pool(0, ["a"], "a")])
    with pytest.raises(BadInput, match="same rows"):
        scored_pool(pools, pd.DataFrame({"row_id": [1], "page_id": ["a"]}), SETTINGS)
