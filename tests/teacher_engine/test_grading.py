"""The graded replies that the mini teacher learns last."""

from __future__ import annotations

import numpy as np
import torch

from vdr.models.mini import mini_tokenizer
from vdr.teacher.pretraining.grading import SCALE, expected_rating, snap, soft_targets
from vdr.teacher.pretraining.lessons import draw_lesson, draw_lesson_page


def token_of(rating: int) -> int:
    """A stand-in vocabulary in which the token of a rating is the rating."""
    return rating


def test_the_expected_rating_is_the_mean_under_the_models_chances() -> None:
    logits = torch.full((2, 101), 9.0)  # what is not a taught rating counts for nothing, however likely
    logits[:, list(SCALE)] = -torch.inf
    logits[0, 0] = logits[0, 100] = 0.0
    logits[1, [20, 50]] = torch.log(torch.tensor([0.25, 0.75]))
    assert torch.allclose(expected_rating(logits, token_of), torch.tensor([50.0, 0.25 * 20 + 0.75 * 50]))


def test_sure_ratings_are_ends_and_others_multiples_of_five() -> None:
    expected = torch.tensor([0.0, 20.0, 20.1, 47.4, 47.6, 79.9, 80.0, 100.0])
    assert snap(expected, 20.0).tolist() == [0, 0, 20, 45, 50, 80, 100, 100]


def test_soft_targets_peak_at_the_rating_and_sum_to_one() -> None:
    targets = soft_targets(torch.tensor([0, 45, 100]), 101, token_of, width=4.0)
    assert torch.allclose(targets.sum(1), torch.ones(3))
    assert targets.argmax(1).tolist() == [0, 45, 100]
    assert torch.isclose(targets[1, 40], targets[1, 50]) and targets[1, 40] < targets[1, 45]
    assert targets[:, [i for i in range(101) if i % 5]].sum() == 0


def test_every_rating_is_one_token_of_the_miniatures_vocabulary() -> None:
    tokenizer = mini_tokenizer()
    ids = [tokenizer(str(v), add_special_tokens=False)["input_ids"] for v in range(101)]
    assert {len(i) for i in ids} == {1}
    assert len({i[0] for i in ids}) == 101


def test_lessons_are_taught_with_the_scale_and_with_all_of_it() -> None:
    rng = np.random.default_rng(0)
    pages = [draw_lesson_page(rng, f"page-{i}") for i in range(20)]
    taught = {draw_lesson(rng, page, pages, 0.7).rating for page in pages for _ in range(40)}
    assert taught == set(SCALE)
