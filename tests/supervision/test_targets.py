import math

import numpy as np
import pytest

from vdr.errors import BadInput
from vdr.supervision import distil, target_entropy, target_shape


def test_one_candidate_from_each_quarter_of_the_pool_in_the_miners_order(make_pool):
    # 27 candidates and the labelled page, which its score (85.5) puts between ranks 14 and 15: quarters of seven.
    order = [f"p{r:03d}" for r in range(1, 15)] + ["gold"] + [f"p{r:03d}" for r in range(15, 28)]
    seen = [set() for _ in range(4)]
    for row in range(400):
        pages = distil(make_pool([0.0] * 27, row_id=row, labelled_score=85.5), "ratings", seed=1).pages
        for part, page in enumerate(pages):
            seen[part].add(page)
    assert seen == [set(order[k * 7 : k * 7 + 7]) for k in range(4)]


def test_the_labelled_page_is_drawn_as_often_as_its_quarter_is_large(make_pool):
    drawn = [
        "gold" in distil(make_pool([0.0] * 28, row_id=r, labelled_score=200), "ratings").pages for r in range(4000)
    ]
    assert np.mean(drawn) == pytest.approx(1 / 8, abs=0.02)  # 29 pages: the first part has eight


def test_a_labelled_page_that_was_not_mined(make_pool):
    lost = [make_pool([0.0] * 28, row_id=r, mined=False) for r in range(200)]
    assert not any("gold" in distil(pool, "ratings").pages for pool in lost)
    assert any("gold" in distil(pool, "ratings", labelled="always").pages for pool in lost)


def test_the_draw_depends_on_seed_and_row_alone(make_pool):
    def pages(row, seed):
        return distil(make_pool([0.1] * 28, row_id=row), "ratings", seed=seed).pages

    assert pages(3, 0) == pages(3, 0)
    assert pages(3, 0) != pages(3, 1)
    assert pages(3, 0) != pages(4, 0)


@pytest.mark.parametrize("rule", ["flat", "masked", "partition"])
def test_every_rule_draws_the_same_candidates(make_pool, rule):
    pool = make_pool([None, 0.3, 1.0, 0.0, None, 0.95] * 4)
    assert distil(pool, rule, seed=2).pages == distil(pool, "ratings", seed=2).pages


def test_unparseable_candidates_are_never_drawn(make_pool):
    pool = make_pool([None, 0.0, None, 1.0, None, 0.2], labelled_rating=None)
    assert distil(pool, "ratings").pages == ["p002", "p004", "p006"]
    assert distil(pool, "ratings").targets == [0.0, 1.0, 0.2]
    nothing = distil(make_pool([None, None], labelled_rating=None), "ratings")
    assert (nothing.pages, nothing.targets, nothing.weight) == ([], [], 0.0)


def four(make_pool, ratings, rule, **more):
    return distil(make_pool(ratings, mined=False), rule, **more)


@pytest.mark.parametrize(
    ("ratings", "weight"),
    [([0, 0, 0, 0], 0.0), ([1, 1, 1, 1], 0.0), ([0.95] * 4, 0.0), ([0, 0, 0, 0.01], 1.0), ([1, 0, 0, 0], 1.0)],
)
def test_masked_zeroes_constant_rows_alone(make_pool, ratings, weight):
    masked = four(make_pool, ratings, "masked")
    assert masked.weight == weight
    assert masked.targets == four(make_pool, ratings, "ratings").targets == ratings
    assert four(make_pool, ratings, "ratings").weight == 1.0


def test_flat_and_partition(make_pool):
    assert four(make_pool, [1, 0.2, 0.5, 0.49], "flat").targets == [0, 0, 0, 0]
    assert four(make_pool, [1, 0.2, 0.5, 0.49], "partition").targets == [1, 0, 1, 0]
    # As mass at T=0.02: 1/|R| on R, exactly so in fp32; uniform where R is empty or holds all.
    logits = np.array([1, 0, 1, 0], dtype=np.float32) / np.float32(0.02)
    mass = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert mass[0] == mass[2] == np.float32(0.5)
    assert len(set(four(make_pool, [0.6, 0.7, 0.9, 1.0], "partition").targets)) == 1
    assert len(set(four(make_pool, [0.0, 0.1, 0.2, 0.4], "partition").targets)) == 1
    with pytest.raises(BadInput, match=r"targets\.rule"):
        four(make_pool, [0, 0, 0, 0], "best")


def test_entropy_of_one_hot_rows_by_hand():
    # softmax([1, 0, 0, 0] / T) has p = e^(1/T) / (e^(1/T) + 3) at the top and q = 1 / (e^(1/T) + 3) three times.
    for temperature in (1.0, 0.5, 0.1, 0.02):
        p = math.exp(1 / temperature) / (math.exp(1 / temperature) + 3)
        q = (1 - p) / 3
        expected = -p * math.log(p) - (3 * q * math.log(q) if q > 0 else 0)
        result = target_entropy([[1, 0, 0, 0], [0, 1, 0, 0]], temperature)
        assert result["entropy"] == pytest.approx(expected, abs=1e-12)
        assert result["max_prob"] == pytest.approx(p)
    # Worked out: at T=1, p = 2.71828 / 5.71828 = 0.47537, q = 0.17488, entropy 0.35352 + 3 * 0.30493 = 1.26830;
    # at T=0.5, p = 7.38906 / 10.38906 = 0.71124, q = 0.09626, entropy 0.24236 + 3 * 0.22531 = 0.91829.
    assert target_entropy([[1, 0, 0, 0]], 1.0)["entropy"] == pytest.approx(1.26830, abs=2e-5)
    assert target_entropy([[1, 0, 0, 0]], 0.5)["entropy"] == pytest.approx(0.91829, abs=2e-5)


@pytest.mark.parametrize(
    ("row", "temperature", "expected"),
    [
        ([0, 0, 0, 0], 0.02, math.log(4)),
        ([1, 1, 1, 1], 0.02, math.log(4)),
        ([0.95] * 4, 1.0, math.log(4)),
        ([1, 1, 0, 0], 0.02, math.log(2)),
        ([1, 0, 0, 0], 0.02, 0.0),
        # A gap of 0.1 at T=0.02 is a mass ratio of e^5 = 148.4: p = 148.413 / 149.413, H = 0.04016.
        ([0.9, 0.8], 0.02, 0.04016),
    ],
)
def test_entropy_of_the_common_shapes(row, temperature, expected):
    assert target_entropy([row], temperature)["entropy"] == pytest.approx(expected, abs=2e-5)


def test_entropy_is_a_mean_over_rows_and_a_share_of_uniform():
    result = target_entropy([[0, 0, 0, 0], [1, 0, 0, 0], [1]], 0.02)
    assert result["entropy"] == pytest.approx(math.log(4) / 2)
    assert result["percent_of_uniform"] == pytest.approx(50.0)
    assert result["max_prob"] == pytest.approx(0.625)
    with pytest.raises(BadInput, match="positive"):
        target_entropy([[1, 0]], 0.0)
    with pytest.raises(BadInput, match="no row"):
        target_entropy([[1]], 1.0)


def test_shape_by_hand():
    rows = [
        [0, 0, 0, 0],
        [1, 1, 1, 1],
        [0.95] * 4,
        [0, 0.2, 0.4, 0],
        [1, 0, 0, 0],
        [0.5, 0.6, 1, 1],
        [1, 0, 1, 0],
        [0, 0, 0, 0],
    ]
    shape = target_shape(rows)
    assert shape == {
        "rows": 8.0,
        "constant_share": 0.5,
        "all_zero_share": 0.25,
        "all_one_share": 0.125,
        "other_constant_share": 0.125,
        "one_side_share": 0.75,
        "weight_left_by_masking": 0.5,
    }
