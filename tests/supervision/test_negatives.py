from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vdr.errors import BadInput
from vdr.supervision.negatives import by_ranks, by_score, by_teacher, matched_alpha, rejection_rate, select_negatives


def test_the_four_highest_ranked_below_one_half(make_pool):
    pool = make_pool([1.0, 0.0, 0.5, 0.49, 0.2, 0.0, 0.0])
    chosen = by_teacher(pool)
    assert [pool.ranks[i] for i in chosen.chosen] == [2, 4, 5, 6]  # 0.5 itself is relevant, 0.49 is not
    assert chosen.filled == 0


def test_a_gap_is_filled_with_the_lowest_rated(make_pool):
    pool = make_pool([1.0, 0.6, 0.1, 0.9, 0.55, 0.6])
    chosen = by_teacher(pool)
    assert [pool.ranks[i] for i in chosen.chosen] == [3, 5, 2, 6]  # 0.55, then the two 0.6 in rank order
    assert chosen.filled == 3
    assert by_teacher(pool, backfill=False).chosen == [2]


def test_unrated_candidates_are_dropped_everywhere(make_pool):
    pool = make_pool([None, 0.0, None, 0.8, 1.0])
    chosen = by_teacher(pool)
    assert [pool.ranks[i] for i in chosen.chosen] == [2, 4, 5]
    assert chosen.filled == 2
    assert by_teacher(make_pool([None, None])).chosen == []


@pytest.mark.parametrize(
    ("window", "expected"),
    [((1, 4), [1, 2, 3, 4]), ((4, 20), [4, 9, 15, 20])],
)
def test_windows_over_exhaustively_scored_ranks(make_pool, window, expected):
    pool = make_pool([0.0] * 28, ranks=[*range(1, 21), 23, 38, 45, 51, 70, 72, 90, 99])
    assert [pool.ranks[i] for i in by_ranks(pool, *window).chosen] == expected


def test_the_deep_window_takes_the_scored_ranks_nearest_to_even_spacing(make_pool):
    # Even ranks: 21, 47.33, 73.67, 100.
    pool = make_pool([0.0] * 28, ranks=[*range(1, 21), 23, 38, 45, 51, 70, 72, 90, 99])
    chosen = by_ranks(pool, 21, 100)
    assert [pool.ranks[i] for i in chosen.chosen] == [23, 45, 72, 99]
    assert chosen.filled == 0


def test_a_short_pool_fills_a_window_from_next_to_it(make_pool):
    pool = make_pool([0.0] * 6)
    chosen = by_ranks(pool, 5, 20)
    assert [pool.ranks[i] for i in chosen.chosen] == [5, 6, 4, 3]
    assert chosen.filled == 2
    assert by_ranks(make_pool([0.0] * 3), 4, 20).filled == 3


def test_positive_aware_threshold(make_pool):
    pool = make_pool([1.0] * 6, scores=[99, 96, 95, 94, 90, 10], labelled_score=100.0)
    chosen = by_score(pool, 0.95)
    assert [pool.scores[i] for i in chosen.chosen] == [
        94,
        90,
        10,
        95,
    ]  # 95 is not below 0.95 * 100: it only fills the gap
    assert chosen.filled == 1
    assert [pool.scores[i] for i in by_score(pool, 0.97).chosen] == [96, 95, 94, 90]
    assert [pool.scores[i] for i in by_score(pool, 0.05).chosen] == [10, 90, 94, 95]


def test_rejection_rate_and_matched_alpha_by_hand(make_pool):
    pools = [
        make_pool([1.0, 0.5, 0.0, 0.2, None], scores=[98, 90, 80, 70, 99], labelled_score=100.0, row_id=1),
        make_pool([1.0, 0.0, 0.0, 0.0], scores=[45, 40, 20, 10], labelled_score=50.0, row_id=2),
        make_pool([1.0, 1.0], scores=[9, 8], mined=False, row_id=3),
    ]
    # Rows 1 and 2 have eight rated candidates, three of them rejected by N.
    assert rejection_rate(pools) == 3 / 8
    # Ratios: .98 .9 .8 .7 | .9 .8 .4 .2; the three largest are .98 .9 .9, so alpha lies between .9 and .8.
    alpha, note = matched_alpha(pools)
    assert alpha == pytest.approx(0.85)
    assert note == {"target_rate": 3 / 8, "rate": 3 / 8, "rows_left_out": 0.0}


def test_matched_alpha_at_the_ends(make_pool):
    nothing = [make_pool([0.0, 0.0], scores=[30, 20])]
    assert matched_alpha(nothing)[1]["rate"] == 0.0
    everything = [make_pool([1.0, 1.0], scores=[30, 20])]
    assert matched_alpha(everything)[1]["rate"] == 1.0
    with pytest.raises(BadInput, match="no labelled page has a positive miner score"):
        matched_alpha([make_pool([1.0], labelled_score=0.0)])
    with pytest.raises(BadInput, match="no rated candidates"):
        rejection_rate([make_pool([1.0], mined=False)])


def test_the_entry_of_an_arm_decides(make_pool):
    pools = {0: make_pool([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], scores=[49, 40, 30, 20, 10, 5])}
    teacher = SimpleNamespace(rule="teacher", count=4, below=0.5, backfill="lowest_rated")
    chosen, note = select_negatives(SimpleNamespace(rule="perc_matched", count=4), pools, teacher)
    assert note["alpha"] == pytest.approx((49 + 40) / 100)
    assert chosen[0].chosen == [1, 2, 3, 4]
    assert select_negatives(teacher, pools)[0][0].chosen == [1, 2, 3, 4]
    assert select_negatives(SimpleNamespace(rule="ranks", first=1, last=4, count=4), pools)[0][0].chosen == [0, 1, 2, 3]
    with pytest.raises(BadInput, match="unknown rule 'best'"):
        select_negatives(SimpleNamespace(rule="best"), pools)
    with pytest.raises(BadInput, match="teacher-judged"):
        select_negatives(SimpleNamespace(rule="perc_matched", count=4), pools, None)


ratings = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.3, 0.49, 0.5, 0.95, 1.0])), min_size=1, max_size=28)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture holds no state
@given(ratings=ratings)
def test_any_pool(make_pool, ratings):
    pool = make_pool(ratings)
    chosen = by_teacher(pool)
    rated = int(pool.rated.sum())
    assert len(chosen.chosen) == min(4, rated)
    assert len(set(chosen.chosen)) == len(chosen.chosen)
    assert chosen.filled == max(0, min(4, rated) - int((pool.ratings < 0.5).sum()))
    kept = chosen.chosen[: len(chosen.chosen) - chosen.filled]
    assert kept == sorted(kept)
    assert all(pool.ratings[i] < 0.5 for i in kept)
    assert all(pool.ratings[i] >= 0.5 for i in chosen.chosen[len(kept) :])
    for window in ((1, 4), (4, 20), (21, 100)):
        taken = by_ranks(pool, *window).chosen
        assert len(taken) == len(set(taken)) == min(4, len(ratings))
    assert len(by_score(pool, 0.9).chosen) == min(4, len(ratings))
