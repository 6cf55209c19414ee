"""InfoNCE over in-batch MaxSim scores, with an arm's own negatives appended to a query's denominator (WT §3)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from vdr.errors import BadInput

__all__ = ["infonce"]


def infonce(
    scores: torch.Tensor,
    positive: torch.Tensor,
    temperature: float,
    negatives: torch.Tensor | None = None,
    negative_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean over queries of −log softmax at the labelled page; a scalar in fp32.

    scores `[B, P]`: query-mean MaxSim of each query with the batch's P *distinct* labelled pages; positive `[B]`
    int64: each query's column. Because a page that two rows share is one column, it is never its own negative.
    negatives `[B, C]`, negative_mask `[B, C]` (true: counts): scores with pages that enter this query's denominator
    only (arm N). Pages that another row with the same query string is labelled with stay negatives, as in the paper
    (§5 leaves out only the row's own).

    WT writes MaxSim as a sum over query vectors and divides by 0.02. A sum of some twenty cosines divided by 0.02
    would be an argmax; S's temperature of 0.02 is tied to InfoNCE's ("the temperature InfoNCE already uses") and to
    ratings in [0, 1]. We read both on query-mean scores, the normalised form of the reference implementation's
    loss.
    """
    if temperature <= 0:
        raise BadInput(f"a temperature is positive, got {temperature}", where="losses.infonce.temperature")
    logits = scores.float() / temperature
    if negatives is not None:
        if negatives.shape[0] != scores.shape[0]:
            raise BadInput(f"{negatives.shape[0]} rows of negatives for {scores.shape[0]} queries", where="negatives")
        extra = negatives.float() / temperature
        if negative_mask is not None:
            extra = extra.masked_fill(~negative_mask, -torch.inf)
        logits = torch.cat([logits, extra], dim=1)
    return F.cross_entropy(logits, positive)
