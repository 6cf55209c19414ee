import numpy as np
import pandas as pd
import pytest

from vdr.errors import BadInput
from vdr.teacher.labels import (
    build_labels,
    by_source,
    by_stratum,
    grades_of,
    label_pairs,
    label_statistics,
    per_query,
    rank_bands,
    summary,
    truth_comparison,
    write_statistics,
)

# rank: 0 is the labelled page. Five candidates a row at ranks 1, 2, 3, 4, 25.
RANKS = [0, 1, 2, 3, 4, 25]
RATED = {
    1: ("docvqa", [1.0, 1.0, 1.0, 0.9, 1.0, 0.5]),  # severe, nothing below: four back-filled
    2: ("docvqa", [1.0, 0.0, 0.0, 0.2, 0.0, 0.0]),  # clean
    3: ("pdf", [0.2, 0.5, 0.0, 0.49, 0.0, 1.0]),  # moderate: c = 1; three below, one back-filled
    4: ("pdf", [1.0, 1.0, None, 0.0, 0.0, 0.0]),  # rank 2 unparseable: no stratum; three below
    5: ("pdf", [1.0, 1.0, 0.7, 1.0, 0.0, 0.0]),  # severe: c = 3; two below, two back-filled
}
GRADE = {
    1: [3, 3, 2, 1, 0, 0],
    2: [3, 0, 0, 2, 0, 0],
    3: [2, 2, 1, 0, 0, 3],
    4: [3, 1, 2, 0, 0, 0],
    5: [3, 3, 3, 3, 0, 0],
}


@pytest.fixture
def pairs():
    lines = [(r, f"p{r}{k}", k, 1.0 - k / 100) for r in RATED for k in RANKS]
    scored = pd.DataFrame(lines, columns=["row_id", "page_id", "rank", "score"])
    ratings = scored[["row_id", "page_id"]].assign(
        rating=np.float32([x for _, its in RATED.values() for x in np.array(its, float)])
    )
    rows = pd.DataFrame({"row_id": list(RATED), "source": [s for s, _ in RATED.values()], "breadth": "specific"})
    grade = np.array([g for its in GRADE.values() for g in its])
    return label_pairs(scored, ratings.sample(frac=1, random_state=0), rows, grade)


def test_rank_bands_by_hand(pairs):
    bands = rank_bands(pairs).set_index("band")
    assert bands.loc["1", "rated_relevant"] == pytest.approx(4 / 5)
    assert bands.loc["1", "mean_rating"] == pytest.approx((1 + 0 + 0.5 + 1 + 1) / 5)
    assert bands.loc["1", "truly_relevant"] == pytest.approx(3 / 5)
    assert bands.loc["2", "rated_relevant"] == pytest.approx(2 / 4)  # the unparseable one is dropped
    assert bands.loc["2", "pairs"] == 5
    assert bands.loc["3-4", "rated_relevant"] == pytest.approx(3 / 10)
    assert bands.loc["21-100", "rated_relevant"] == pytest.approx(2 / 5)
    assert bands.loc["5-9", "pairs"] == 0
    assert np.isnan(bands.loc["5-9", "rated_relevant"])
    assert bands.loc["labelled page", "rated_relevant"] == pytest.approx(4 / 5)
    assert bands.loc["labelled page", "truly_relevant"] == 1.0


def test_per_query_by_hand(pairs):
    rows = per_query(pairs).set_index("row_id")
    assert rows["rated"].tolist() == [5, 5, 5, 4, 5]
    assert rows["relevant"].tolist() == [5, 0, 2, 1, 3]
    assert rows["below"].tolist() == [0, 5, 3, 3, 2]
    assert rows["truly_relevant"].tolist() == [2, 1, 2, 1, 3]
    assert rows["stratum"].tolist()[:3] == ["severe", "clean", "moderate"]
    assert pd.isna(rows.loc[4, "stratum"])
    assert rows["backfill"].tolist() == [True, False, True, True, True]
    assert rows["negatives_relevant"].tolist() == [4, 0, 1, 1, 2]


def test_strata_by_hand(pairs):
    table = by_stratum(pairs).set_index("stratum")
    assert table["queries"].tolist() == [1, 1, 2, 4]
    assert table.loc["severe", "share"] == 0.5
    assert table.loc["severe", "backfill_share"] == 1.0
    assert table.loc["severe", "negatives_relevant"] == 3.0
    assert table.loc["all", "negatives_relevant"] == pytest.approx(7 / 4)


def test_sources_and_summary_by_hand(pairs):
    table = by_source(pairs).set_index("source")
    assert table.index.tolist() == ["docvqa", "pdf", "all"]
    assert table["queries"].tolist() == [2, 3, 5]
    assert table["top1_rated_relevant"].tolist() == pytest.approx([0.5, 1.0, 0.8])
    assert table["top1_truly_relevant"].tolist() == pytest.approx([0.5, 2 / 3, 0.6])
    assert table["none_share"].tolist() == pytest.approx([0.5, 0.0, 0.2])
    assert table["median_relevant"].tolist() == [2.5, 2.0, 2.0]
    result = summary(pairs)
    assert result["median_relevant_per_query"] == 2
    assert result["queries_with_none"] == pytest.approx(0.2)
    assert result["at_least_three_of_four"] == 0.5
    assert result["backfill_needed_of_those"] == 1.0
    assert result["queries_with_top_four_rated"] == 4
    assert result["negatives_rated_relevant"] == pytest.approx(7 / 16)
    assert result["truly_relevant_of_top_four"] == pytest.approx(4 * 8 / 20)


def test_truth_comparison_by_hand(pairs):
    top = truth_comparison(pairs, 1, 4)
    # Rated at ranks 1-4: 19 pairs. Said relevant: 4 + 0 + 1 + 1 + 3 = 9, of them truly relevant 2 + 1 + 0 + 3 = 6.
    # Said irrelevant: 10, of them truly relevant 1 (row 2, rank 3).
    assert top["pairs"] == 19
    assert top["precision"] == pytest.approx(6 / 9)
    assert top["miss_rate"] == pytest.approx(1 / 10)
    assert top["recall"] == pytest.approx(6 / 7)
    assert top["specificity"] == pytest.approx(9 / 12)
    assert top["accuracy"] == pytest.approx(15 / 19)
    assert top["true_share"] == pytest.approx(7 / 19)


def test_pooled_auc_gives_half_credit_to_ties():
    def auc(ratings, grades):
        frame = pd.DataFrame({"rank": 1, "rating": ratings, "grade": grades})
        return truth_comparison(frame)["auc"]

    assert auc([1.0, 0.5, 0.5, 0.0], [3, 2, 1, 0]) == pytest.approx((2 + 1.5) / 4)
    assert auc([0.3, 0.3], [3, 0]) == 0.5
    assert np.isnan(auc([0.3, 0.3], [0, 0]))


def test_everything_works_without_ratings_or_truth(pairs):
    untrue = pairs.assign(grade=np.nan)
    assert "truth" not in label_statistics(untrue)
    assert np.isnan(summary(untrue)["median_truly_relevant_per_query"])
    unrated = label_statistics(pairs.assign(rating=np.nan))
    assert unrated["rank_bands"].set_index("band").loc["1", "truly_relevant"] == pytest.approx(0.6)
    assert unrated["by_source"]["queries_with_a_rated_candidate"].sum() == 0


def test_files(pairs, tmp_path):
    for name in ("a", "b"):
        write_statistics(label_statistics(pairs), tmp_path / name)
    names = ["by_source", "by_stratum", "rank_bands", "summary", "truth"]
    assert sorted(p.stem for p in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / f"a/{name}.csv").read_bytes() == (tmp_path / f"b/{name}.csv").read_bytes()


def test_a_cut_at_a_hundredth_is_not_lost_in_fp32():
    scored = pd.DataFrame({"row_id": [0], "page_id": ["p"], "rank": [1], "score": [1.0]})
    rows = pd.DataFrame({"row_id": [0], "source": ["pdf"]})
    rating = scored[["row_id", "page_id"]].assign(rating=np.float32([0.9]))
    assert label_pairs(scored, rating, rows)["rating"].iloc[0] == 0.9


def test_grades_are_looked_up_in_file_order_and_checked():
    grades = np.array([[0, 1], [2, 3]], dtype=np.int8)
    pairs = pd.DataFrame({"row_id": [7, 5, 7], "page_id": ["b", "a", "a"]})
    assert grades_of(pairs, grades, [5, 7], ["a", "b"]).tolist() == [3, 0, 2]
    with pytest.raises(BadInput, match=r"truth\.npz"):
        grades_of(pairs, grades, [5], ["a", "b"])
    with pytest.raises(BadInput, match="outside the truth"):
        grades_of(pairs, grades, [5, 6], ["a", "b"])


def test_the_stage_writes_all_tables_and_says_the_main_figures(tmp_path):
    scored = pd.DataFrame(
        {"row_id": [1, 1, 1], "page_id": ["a", "b", "c"], "rank": [0, 1, 2], "score": [3.0, 2.0, 1.0]}
    )
    ratings = scored[["row_id", "page_id"]].assign(rating=np.float32([1, 1, 0]))
    rows = pd.DataFrame({"row_id": [1], "source": ["pdf"], "breadth": ["broad"]})
    truth = np.array([[0, 0, 0], [3, 2, 0]], dtype=np.int8)
    build_labels(scored, ratings, rows, tmp_path, measures := {}, truth=truth, row_ids=[0, 1], page_ids=["a", "b", "c"])
    assert measures["labels"]["median_relevant_per_query"] == 1
    assert measures["teacher_against_truth"]["auc"] == 1.0
    assert pd.read_csv(tmp_path / "truth.csv")["candidates"].tolist() == ["ranks 1-4", "all scored", "ranks 1-4, broad"]
    with pytest.raises(BadInput, match="axes"):
        build_labels(scored, ratings, rows, tmp_path, {}, truth=truth)
