"""Each loss against a plain twin written out by hand, and against values worked on paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vdr.errors import BadInput
from vdr.kernels.maxsim import maxsim
from vdr.losses import attention_loss, description_loss, infonce, patch_similarity, score_kl, target_distribution


# -- plain twins
# ---------------------------------------------------------------------------------------------------------
def plain_softmax(values):
    top = max(values)
    weights = [math.exp(v - top) for v in values]
    return [w / sum(weights) for w in weights]


def plain_infonce(scores, positive, temperature, negatives=None, mask=None):
    total = 0.0
    for row, own in enumerate(positive):
        logits = [s / temperature for s in scores[row]]
        if negatives is not None:
            logits += [s / temperature for s, ok in zip(negatives[row], mask[row], strict=True) if ok]
        total -= math.log(plain_softmax(logits)[own])
    return total / len(positive)


def plain_kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def plain_score_kl(student, ratings, mask, weights, t_teacher, t_student):
    total = 0.0
    for row in range(len(student)):
        keep = [c for c, ok in enumerate(mask[row]) if ok]
        if keep and weights[row]:
            target = plain_softmax([ratings[row][c] / t_teacher for c in keep])
            total += weights[row] * plain_kl(target, plain_softmax([student[row][c] / t_student for c in keep]))
    return total / len(student)


def plain_attention(q, q_mask, patches, maps, present):
    losses = []
    for row in range(len(q)):
        if not present[row]:
            continue
        valid = [i for i, ok in enumerate(q_mask[row]) if ok]
        r = [sum(float(q[row][i] @ patches[row][j]) for i in valid) / len(valid) for j in range(len(patches[row]))]
        a = [float(v) for v in maps[row]]
        dot = sum(x * y for x, y in zip(r, a, strict=True))
        losses.append(1 - dot / (math.sqrt(sum(x * x for x in r)) * math.sqrt(sum(y * y for y in a))))
    return sum(losses) / len(losses) if losses else 0.0


def numbers(seed, *shape, low=-1.0, high=1.0):
    return torch.empty(shape).uniform_(low, high, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 6), st.integers(1, 4), st.sampled_from([0.05, 0.3, 1.0])
)
def test_losses_equal_their_twins(seed, b, p, c, temperature):
    scores, extra = numbers(seed, b, p), numbers(seed + 1, b, c)
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randint(p, (b,), generator=generator)
    mask = torch.rand(b, c, generator=generator) < 0.7
    ratings = numbers(seed + 2, b, c, low=0.0)
    weights = (torch.rand(b, generator=generator) < 0.7).float()
    assert float(infonce(scores, positive, temperature)) == pytest.approx(
        plain_infonce(scores.tolist(), positive.tolist(), temperature), rel=1e-4, abs=1e-6
    )
    assert float(infonce(scores, positive, temperature, extra, mask)) == pytest.approx(
        plain_infonce(scores.tolist(), positive.tolist(), temperature, extra.tolist(), mask.tolist()),
        rel=1e-4,
        abs=1e-6,
    )
    assert float(score_kl(extra, ratings, mask, weights, temperature, 2 * temperature)) == pytest.approx(
        plain_score_kl(extra.tolist(), ratings.tolist(), mask.tolist(), weights.tolist(), temperature, 2 * temperature),
        rel=1e-3,
        abs=1e-6,
    )
    other = numbers(seed + 3, b, p)
    everyone = torch.ones(b, dtype=torch.bool)
    mean = (
        sum(
            plain_kl(plain_softmax([v / temperature for v in x]), plain_softmax([v / temperature for v in y]))
            for x, y in zip(scores.tolist(), other.tolist(), strict=True)
        )
        / b
    )
    assert float(description_loss(scores, other, everyone, temperature)) == pytest.approx(mean, rel=1e-3, abs=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_attention_equals_its_twin(seed):
    q, patches, maps = numbers(seed, 3, 5, 8), numbers(seed + 1, 3, 6, 8), numbers(seed + 2, 3, 6, low=0.0)
    generator = torch.Generator().manual_seed(seed)
    q_mask = torch.rand(3, 5, generator=generator) < 0.7
    q_mask[:, 0] = True
    present = torch.tensor([True, False, True])
    value = attention_loss(patch_similarity(q, q_mask, patches), maps, present)
    assert float(value) == pytest.approx(plain_attention(q, q_mask.tolist(), patches, maps, present.tolist()), abs=1e-5)


# -- worked values
# -------------------------------------------------------------------------------------------------------
def test_infonce_by_hand():
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert float(infonce(scores, torch.tensor([0, 1]), 1.0)) == pytest.approx(math.log(1 + math.exp(-1)))
    # One appended negative as good as the labelled page: the denominator gains e^1.
    extra = torch.tensor([[1.0], [1.0]])
    value = float(infonce(scores, torch.tensor([0, 1]), 1.0, extra, torch.ones(2, 1, dtype=torch.bool)))
    assert value == pytest.approx(math.log(2 + math.exp(-1)))
    # Masked, it is as if it were not there.
    assert float(
        infonce(scores, torch.tensor([0, 1]), 1.0, extra, torch.zeros(2, 1, dtype=torch.bool))
    ) == pytest.approx(math.log(1 + math.exp(-1)))


def test_appended_negatives_enter_their_own_querys_denominator_only():
    scores = torch.tensor([[0.5, 0.1], [0.2, 0.6]])
    extra = torch.tensor([[0.9], [-5.0]], requires_grad=True)
    infonce(scores, torch.tensor([0, 1]), 1.0, extra, torch.tensor([[True], [False]])).backward()
    assert extra.grad[0, 0] > 0
    assert extra.grad[1, 0] == 0


@pytest.mark.parametrize(("ratings", "temperature", "share"), [
    ([0.0, 0.0, 0.0, 0.0], 0.02, 1.0),
    ([1.0, 1.0, 1.0, 1.0], 0.02, 1.0),
    ([0.95, 0.95, 0.95, 0.95], 1.0, 1.0),
    ([1.0, 0.0, 0.0, 0.0], 0.02, 0.0),
    ([1.0, 1.0, 0.0, 0.0], 0.02, 0.5),
    # e/(e+3) once and 1/(e+3) three times: (0.47537, 0.17488 × 3), H = 1.26837 of ln 4 = 1.38629.
    ([1.0, 0.0, 0.0, 0.0], 1.0, 0.91493),
])  # fmt: skip
def test_entropy_of_the_target_against_uniform(ratings, temperature, share):
    """WT App. A: at T = 1 a one-hot rating keeps 91 % of uniform entropy, at 0.02 none."""
    target = target_distribution(torch.tensor([ratings]), torch.ones(1, 4, dtype=torch.bool), temperature)[0].tolist()
    entropy = -sum(p * math.log(p) for p in target if p > 0)
    assert entropy / math.log(4) == pytest.approx(share, abs=1e-4)


def test_a_tenth_of_rating_is_a_mass_ratio_of_about_150():
    target = target_distribution(torch.tensor([[0.9, 0.8]]), torch.ones(1, 2, dtype=torch.bool), 0.02)[0]
    assert float(target[0] / target[1]) == pytest.approx(math.exp(5), rel=1e-4)  # 148.4 (WT §7)


def test_all_zero_and_all_one_ratings_give_the_same_loss_and_a_masked_row_no_gradient():
    student = torch.tensor([[0.3, 0.1, 0.2, 0.4]], requires_grad=True)
    everything = torch.ones(1, 4, dtype=torch.bool)
    zero = score_kl(student, torch.zeros(1, 4), everything, torch.ones(1), 0.02, 0.02)
    one = score_kl(student, torch.ones(1, 4), everything, torch.ones(1), 0.02, 0.02)
    assert zero.item() == pytest.approx(one.item())
    assert zero.item() > 0  # a constant target pulls the student towards uniform
    score_kl(student, torch.zeros(1, 4), everything, torch.zeros(1), 0.02, 0.02).backward()
    assert student.grad.eq(0).all()


def test_partition_target_is_uniform_on_the_relevant():
    """Ratings of 1 on R and 0 elsewhere at T = 0.02 are mass 1/|R| on R in fp32."""
    target = target_distribution(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.ones(1, 4, dtype=torch.bool), 0.02)[0]
    torch.testing.assert_close(target, torch.tensor([0.5, 0.0, 0.5, 0.0]))


def test_masking_rows_lowers_the_weight_of_the_rest():
    """The mean stays over all rows (WT App. A: the surviving rows carry 0.574 of the weight)."""
    student = torch.tensor([[0.3, 0.1], [0.1, 0.3]])
    ratings = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    everything = torch.ones(2, 2, dtype=torch.bool)
    alone = score_kl(student[:1], ratings[:1], everything[:1], torch.ones(1), 0.1, 0.1)
    masked = score_kl(student, ratings, everything, torch.tensor([1.0, 0.0]), 0.1, 0.1)
    assert float(masked) == pytest.approx(float(alone) / 2)


def test_candidates_that_are_not_there_are_not_read():
    mask = torch.tensor([[True, True, False]])
    a = score_kl(torch.tensor([[0.1, 0.2, 9.0]]), torch.tensor([[1.0, 0.0, math.nan]]), mask, torch.ones(1), 0.1, 0.1)
    b = score_kl(torch.tensor([[0.1, 0.2]]), torch.tensor([[1.0, 0.0]]), mask[:, :2], torch.ones(1), 0.1, 0.1)
    assert float(a) == pytest.approx(float(b))
    none = score_kl(
        torch.tensor([[0.1, 0.2]], requires_grad=True),
        torch.zeros(1, 2),
        torch.zeros(1, 2, dtype=torch.bool),
        torch.ones(1),
        0.1,
        0.1,
    )
    assert float(none) == 0.0


def test_attention_by_hand():
    q = torch.tensor([[[1.0, 0.0], [5.0, 5.0]]])
    mask = torch.tensor([[True, False]])
    patches = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    similarity = patch_similarity(q, mask, patches)
    torch.testing.assert_close(similarity, torch.tensor([[1.0, 0.0]]))
    assert float(attention_loss(similarity, torch.tensor([[3.0, 0.0]]), torch.tensor([True]))) == pytest.approx(0.0)
    assert float(attention_loss(similarity, torch.tensor([[0.0, 2.0]]), torch.tensor([True]))) == pytest.approx(1.0)
    assert float(attention_loss(similarity, torch.tensor([[1.0, 1.0]]), torch.tensor([True]))) == pytest.approx(
        1 - 0.5**0.5
    )
    assert float(attention_loss(similarity, torch.ones(1, 2), torch.tensor([False]))) == 0.0


def test_description_direction_and_detach():
    query = torch.tensor([[2.0, 0.0]], requires_grad=True)
    other = torch.tensor([[0.0, 1.0]], requires_grad=True)
    here = torch.tensor([True])
    p, d = plain_softmax([2.0, 0.0]), plain_softmax([0.0, 1.0])
    assert float(description_loss(query, other, here, 1.0)) == pytest.approx(plain_kl(p, d), rel=1e-5)
    assert float(description_loss(query, other, here, 1.0, "description_over_query")) == pytest.approx(
        plain_kl(d, p), rel=1e-5
    )
    description_loss(query, other, here, 1.0, detach="description").backward()
    assert other.grad is None
    assert query.grad.abs().sum() > 0
    with pytest.raises(BadInput, match="unknown direction"):
        description_loss(query, other, here, 1.0, "sideways")


def test_gradients_of_each_term():
    """Numerical gradients, through MaxSim where it matters (fp64 for the check)."""
    scores = numbers(0, 3, 4).double().requires_grad_()
    from torch.autograd import gradcheck

    assert gradcheck(
        lambda s: _f64(infonce, s, torch.tensor([0, 1, 2]), 0.5), (scores,), atol=1e-3, rtol=1e-2, eps=1e-3
    )
    ratings = numbers(1, 3, 4, low=0.0)
    everything = torch.ones(3, 4, dtype=torch.bool)
    assert gradcheck(
        lambda s: _f64(score_kl, s, ratings, everything, torch.ones(3), 0.5, 0.5),
        (scores,),
        atol=1e-3,
        rtol=1e-2,
        eps=1e-3,
    )
    maps = numbers(2, 3, 4, low=0.0)
    assert gradcheck(
        lambda s: _f64(attention_loss, s, maps, torch.ones(3, dtype=torch.bool)),
        (scores,),
        atol=1e-3,
        rtol=1e-2,
        eps=1e-3,
    )


def _f64(function, *arguments):
    return function(*arguments).double()


def test_a_padded_query_vector_changes_nothing():
    q, p = numbers(0, 2, 3, 4), numbers(1, 2, 5, 4)
    padded = torch.cat([q, torch.full((2, 2, 4), 7.0)], 1)
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    torch.testing.assert_close(maxsim(padded, p, mask, None, "mean"), maxsim(q, p, None, None, "mean"))


def test_bad_temperatures_and_ratings_are_refused():
    with pytest.raises(BadInput, match="positive"):
        infonce(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long), 0.0)
    with pytest.raises(BadInput, match=r"\[0, 1\]"):
        score_kl(
            torch.zeros(1, 2), torch.tensor([[0.0, 95.0]]), torch.ones(1, 2, dtype=torch.bool), torch.ones(1), 0.1, 0.1
        )
