"""Description alignment (D): query and description should order the batch's pages alike (WT §3, App. H).

WT: "a KL between the query-conditioned and description-conditioned distributions over in-batch documents", λ 0.2, τ
0.05, the description of the labelled page encoded through the query tower. It names neither the KL's direction nor
whether a side is held constant. The released code of the method it reproduces (ReAlign) takes the query's
distribution as the target, KL(query ‖ description), lets gradient through both sides, and shares one temperature
with the contrastive term, which WT does not. We follow that direction and that gradient by default, with WT's own
temperature; both are settings of the arm.
"""

from __future__ import annotations

import torch

from vdr.errors import BadInput

__all__ = ["description_loss"]


def description_loss(
    query_scores: torch.Tensor,
    description_scores: torch.Tensor,
    present: torch.Tensor,
    temperature: float,
    direction: str = "query_over_description",
    detach: str = "none",
) -> torch.Tensor:
    """Mean KL over the rows that have a description; 0 when none has; a scalar in fp32.

    query_scores and description_scores `[B, P]`: query-mean MaxSim of the row's query, and of its description, with the
    batch's P distinct labelled pages; present `[B]` bool.
    """
    if temperature <= 0:
        raise BadInput(f"a temperature is positive, got {temperature}", where="losses.description.temperature")
    query = torch.log_softmax(
        (query_scores.detach() if detach == "query" else query_scores).float() / temperature, dim=-1
    )
    other = torch.log_softmax(
        (description_scores.detach() if detach == "description" else description_scores).float() / temperature, dim=-1
    )
    if direction == "description_over_query":
        query, other = other, query
    elif direction != "query_over_description":
        raise BadInput(
            f"unknown direction {direction!r}",
            where="losses.description.direction",
            todo="query_over_description or description_over_query",
        )
    divergence = (query.exp() * (query - other)).sum(-1)
    weight = present.float()
    return (divergence * weight).sum() / weight.sum().clamp_min(1)
