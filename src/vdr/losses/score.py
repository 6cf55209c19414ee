"""Score distillation (S): KL of the teacher's over the student's softmax on a query's candidates (WT §3, App. A)."""

from __future__ import annotations

import torch

from vdr.errors import BadInput

__all__ = ["score_kl", "target_distribution"]


def target_distribution(ratings: torch.Tensor, mask: torch.Tensor, temperature: float) -> torch.Tensor:
    """softmax(ratings / T) over valid candidates, `[B, C]`; a row without any is all zero.

    Ratings are in [0, 1]. Only their differences matter: [0, 0, 0, 0] and [1, 1, 1, 1] give the same (uniform) target.
    """
    logits = (ratings.float() / temperature).masked_fill(~mask, -torch.inf)
    return torch.softmax(logits, dim=-1).masked_fill(~mask.any(-1, keepdim=True), 0.0)


def score_kl(
    student: torch.Tensor,
    ratings: torch.Tensor,
    mask: torch.Tensor,
    row_weight: torch.Tensor,
    teacher_temperature: float,
    student_temperature: float,
) -> torch.Tensor:
    """Mean over *all* rows of weight · KL(softmax(ratings/T_t) ‖ softmax(student/T_s)); a scalar in fp32.

    student `[B, C]` query-mean MaxSim, ratings `[B, C]` in [0, 1], mask `[B, C]` (false: no such candidate; its
    values are not read), row_weight `[B]` (0 drops a row, as S-masked does with constant ones). Dropped rows stay
    in the mean, so masking also lowers the term's effective weight, as the paper reports (App. A).
    """
    if teacher_temperature <= 0 or student_temperature <= 0:
        raise BadInput("temperatures are positive", where="losses.score")
    ratings = ratings.masked_fill(~mask, 0.0)
    if not bool(((ratings >= 0) & (ratings <= 1)).all()):
        raise BadInput("ratings lie in [0, 1]", where="targets")
    target = target_distribution(ratings, mask, teacher_temperature)
    logits = (student.float() / student_temperature).masked_fill(~mask, -torch.inf)
    log_student = torch.log_softmax(logits, dim=-1).masked_fill(~mask, 0.0)
    log_target = target.clamp_min(torch.finfo(torch.float32).tiny).log()
    # Where the target is zero the product is zero, whatever the logarithm was clamped to.
    divergence = (target * (log_target - log_student)).sum(-1)
    return (divergence * row_weight.float()).mean()
