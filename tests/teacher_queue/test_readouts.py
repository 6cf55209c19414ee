import math

import numpy as np
import pandas as pd
import pytest

from vdr.errors import BadInput
from vdr.teacher.readouts import build_readouts, compare_readouts, readout_summary, row_comparisons, yes_probability


def table(rows):
    lines = [(row, f"p{rank}", rank, score) for row, scores in rows.items() for rank, score in enumerate(scores)]
    return pd.DataFrame(lines, columns=["row_id", "page_id", "rank", "score"])


TOY = table(
    {
        0: [1.0, 1.0, 1.0, 1.0, 0.0],  # three ties, one won: auc (1 + 1.5) / 4
        1: [0.5, 0.9, 0.0, None],  # one lost, one won: auc 1/2
        2: [None, 0.4],  # labelled page unparseable: out
        3: [0.0, 0.1, 0.2, 0.3],  # all lost: auc 0
    }
)


def test_row_comparisons_by_hand():
    rows = row_comparisons(TOY).set_index("row_id")
    assert rows.index.tolist() == [0, 1, 3]
    assert rows["candidates"].tolist() == [4, 2, 3]
    assert rows["auc"].tolist() == [0.625, 0.5, 0.0]
    assert rows["top3_for"].tolist() == [True, True, False]
    assert rows["top3_against"].tolist() == [False, True, False]


def test_summary_by_hand():
    result = readout_summary(TOY)
    assert result["pairs"] == 15
    assert result["unparseable_share"] == pytest.approx(2 / 15)
    assert result["share_at_0"] == pytest.approx(3 / 13)
    assert result["share_at_1"] == pytest.approx(4 / 13)
    assert result["comparisons"] == 9
    assert result["tie_share"] == pytest.approx(3 / 9)
    assert result["auc"] == pytest.approx((0.625 + 0.5 + 0.0) / 3)
    assert result["top3_ties_for_labelled"] == pytest.approx(2 / 3)
    assert result["top3_ties_against_labelled"] == pytest.approx(1 / 3)


def test_a_constant_readout_has_half_the_area_and_all_depends_on_the_tie_rule():
    result = readout_summary(table({i: [0.7] * 6 for i in range(3)}))
    assert (result["auc"], result["tie_share"]) == (0.5, 1.0)
    assert (result["top3_ties_for_labelled"], result["top3_ties_against_labelled"]) == (1.0, 0.0)


def test_yes_probability():
    assert yes_probability(np.log([0.3]), np.log([0.1]))[0] == pytest.approx(0.75)
    assert yes_probability(np.array([-1e4, 0.0]), np.array([0.0, -1e4])).tolist() == [0.0, 1.0]
    assert yes_probability(np.array([-2.0]), np.array([-2.0]))[0] == 0.5
    assert yes_probability(np.array([0.0]), np.array([-1.0]))[0] == pytest.approx(1 / (1 + math.exp(-1)))


def test_comparison_reads_shared_pairs_only():
    better = TOY.assign(score=[0.9, 0.8, 0.7, 0.6, 0.1, 0.9, 0.8, 0.1, 0.2, 0.5, 0.4, 0.9, 0.1, 0.2, None])
    result = compare_readouts(TOY, better, draws=500)
    # Row 0: 1.0 against 0.625; row 1: 1.0 against 0.5; row 3 on its two shared candidates: 1.0 against 0.
    assert (result.queries, result.pairs) == (3, 8)
    assert result.first_auc == pytest.approx((0.625 + 0.5 + 0.0) / 3)
    assert result.second_auc == 1.0
    assert result.difference == pytest.approx((0.375 + 0.5 + 1.0) / 3)
    assert 0.375 <= result.low <= result.difference <= result.high <= 1.0
    assert compare_readouts(TOY, better, draws=500) == result
    with pytest.raises(BadInput, match="share no row"):
        compare_readouts(TOY, TOY.assign(score=None))


def test_bootstrap_interval_of_a_known_spread():
    # 100 rows whose difference is 0 or 1 with equal shares: the mean's standard error is 0.05.
    first = table({i: [0.0, 1.0] for i in range(100)})
    second = table({i: [2.0 if i % 2 else 0.0, 1.0] for i in range(100)})
    result = compare_readouts(first, second, draws=4000)
    assert result.difference == 0.5
    assert result.high - result.low == pytest.approx(2 * 1.96 * 0.05, abs=0.02)


def test_files_over_the_pairs_that_were_asked_twice(tmp_path):
    ratings = TOY.rename(columns={"score": "rating"})
    yesno = TOY[TOY["row_id"] < 2].assign(p_yes=[0.9, 0.8, 0.7, 0.6, 0.1, 0.9, 0.8, 0.1, 0.2]).drop(columns="score")
    build_readouts(ratings, yesno, tmp_path, measures := {}, draws=200)
    table = pd.read_csv(tmp_path / "readouts.csv").set_index("readout")
    assert table["queries"].tolist() == [2, 2]
    assert table.loc["rating", "auc"] == pytest.approx((0.625 + 0.5) / 2)
    assert table.loc["yes/no", "auc"] == 1.0
    assert table.loc["rating", "unparseable_share"] == pytest.approx(1 / 9)
    assert measures["comparison"]["difference"] == pytest.approx((0.375 + 0.5) / 2)
    assert measures["comparison"]["pairs"] == 6
