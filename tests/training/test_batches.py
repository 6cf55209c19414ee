"""What stands in a batch: every page once, no page its own negative, ratings with their candidates."""

from __future__ import annotations

import pytest
import torch

from vdr.errors import BadInput
from vdr.models.processing import Processor
from vdr.models.student import Seeds, Student
from vdr.models.vision_cache import CachedFeatures
from vdr.study.sections.training import ArmLosses
from vdr.training.data import Collator, TrainingRows
from vdr.training.objective import batch_loss


@pytest.fixture(scope="module")
def parts(backbone_dir, cache_dir, training):
    student = Student.create(backbone_dir, training, Seeds.of(0))
    return student, Processor.from_pretrained(backbone_dir, augmentation_tokens=2), CachedFeatures(cache_dir)


def rows_of(processor, pages, negatives=None, candidates=None, ratings=None):
    n = len(pages)
    empty = [[] for _ in range(n)]
    return TrainingRows(list(range(100, 100 + n)), pages, [processor.query_ids(f"revenue {i}") for i in range(n)], negatives or empty,
                        candidates or empty, ratings or empty, [1.0] * n, [None] * n)  # fmt: skip


def test_a_page_that_two_rows_share_is_one_column_and_never_its_own_negative(parts):
    student, processor, source = parts
    rows = rows_of(processor, ["p00", "p01", "p00"])
    batch = Collator(rows, student, processor, source, ArmLosses())([0, 1, 2])
    assert batch.labelled == 2
    assert batch.positive.tolist() == [0, 1, 0]
    assert batch.pages.ids.shape[0] == 2
    assert batch.row_ids == [100, 101, 102]


def test_appended_negatives_count_once_and_never_as_the_labelled_page(parts):
    student, processor, source = parts
    # Row 0's negatives: a fresh page, the other row's labelled page (already a column), its own labelled page.
    rows = rows_of(processor, ["p00", "p01"], negatives=[["p05", "p01", "p00"], ["p05"]])
    collate = Collator(rows, student, processor, source, ArmLosses())
    batch = collate([0, 1])
    assert batch.pages.ids.shape[0] == 3  # p05 is encoded once for both rows
    assert batch.negative_mask.tolist() == [[True, False, False], [True, False, False]]
    loss, _ = batch_loss(student, batch, ArmLosses())
    alone = rows_of(processor, ["p00", "p01"], negatives=[["p05"], ["p05"]])
    expected, _ = batch_loss(student, Collator(alone, student, processor, source, ArmLosses())([0, 1]), ArmLosses())
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)


def test_candidates_leave_infonce_alone_and_carry_their_ratings(parts):
    student, processor, source = parts
    losses = ArmLosses(score={"weight": 1.0})
    rows = rows_of(
        processor, ["p00", "p01"], candidates=[["p05", "p00", "p06"], ["p07"]], ratings=[[0.0, 1.0, 0.5], [0.25]]
    )
    batch = Collator(rows, student, processor, source, losses)([1, 0])
    assert batch.candidate_mask.tolist() == [[True, False, False], [True, True, True]]
    assert batch.ratings.tolist() == [[0.25, 0.0, 0.0], [0.0, 1.0, 0.5]]
    assert (
        batch.candidates[1, 1] == batch.positive[1]
    )  # the labelled page may be a candidate (WT §3: 12.1 % of queries)
    _, terms = batch_loss(student, batch, losses)
    plain, _ = batch_loss(
        student,
        Collator(rows_of(processor, ["p00", "p01"]), student, processor, source, ArmLosses())([1, 0]),
        ArmLosses(),
    )
    assert terms["infonce"] == pytest.approx(plain.item(), abs=1e-4)


def test_a_row_without_candidates_has_no_weight(parts):
    student, processor, source = parts
    losses = ArmLosses(score={"weight": 1.0})
    rows = rows_of(processor, ["p00", "p01"], candidates=[[], ["p07", "p08"]], ratings=[[], [0.0, 1.0]])
    batch = Collator(rows, student, processor, source, losses)([0, 1])
    assert batch.weights.tolist() == [0.0, 1.0]
    loss, _ = batch_loss(student, batch, losses)
    assert torch.isfinite(loss)


def test_nested_widths_average_the_loss_of_every_prefix(parts):
    student, processor, source = parts
    rows = rows_of(processor, ["p00", "p01", "p02"], negatives=[["p05"], ["p06"], ["p07"]])
    losses = ArmLosses(infonce={"widths": [4, 16]})
    batch = Collator(rows, student, processor, source, losses)([0, 1, 2])
    loss, _ = batch_loss(student, batch, losses)
    with torch.no_grad():
        pages, queries = student.encode([batch.pages, batch.queries])
    expected = []
    for width in (4, 16):
        p, q = (torch.nn.functional.normalize(v[..., :width], dim=-1) for v in (pages, queries))
        total = 0.0
        for row in range(3):
            own = q[row, batch.queries.mask[row]]
            scores = [
                float((own @ p[page].T).amax(1).mean()) / 0.02 for page in (0, 1, 2, int(batch.negatives[row, 0]))
            ]
            total += torch.logsumexp(torch.tensor(scores), 0).item() - scores[row]
        expected.append(total / 3)
    assert loss.item() == pytest.approx(sum(expected) / 2, abs=1e-3)
    with pytest.raises(BadInput, match="widest trained width is 8"):
        batch_loss(student, batch, ArmLosses(infonce={"widths": [4, 8]}))
