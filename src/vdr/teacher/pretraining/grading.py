"""The last part of the mini teacher's training: it learns to write down how sure it is.

Greedy decoding replies with the likeliest of the five ratings it was taught, and so hides what the teacher knows: a pair it
holds for just likelier than not reads like one it is certain of. A large model asked for 0–100 hedges by writing numbers
between. Here a frozen copy of the teacher says what it expects of each pair, and the teacher learns to reply with that.
No truth is used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["SCALE", "STEP", "expected_rating", "snap", "soft_targets"]

#: The ratings that lessons are taught with (`lessons.rating_of`).
SCALE = (0, 20, 50, 75, 100)
#: Replies between the ends are multiples of this.
STEP = 5


def expected_rating(logits: torch.Tensor, token_of: Callable[[int], int]) -> torch.Tensor:
    """Mean of the taught ratings under the model's own chances. logits: ``[n, vocabulary]``; returns ``[n]`` in 0–100."""
    tokens = torch.tensor([token_of(v) for v in SCALE])
    return logits[:, tokens].softmax(1) @ torch.tensor([float(v) for v in SCALE])


def snap(expected: torch.Tensor, sure: float) -> torch.Tensor:
    """The integer to write, int64 ``[n]``: 0 at or below ``sure``, 100 at or above ``100 - sure``, else the nearest multiple of 5."""
    near = (expected / STEP).round().long() * STEP
    near[expected <= sure] = 0
    near[expected >= 100 - sure] = 100
    return near


def soft_targets(ratings: torch.Tensor, vocabulary: int, token_of: Callable[[int], int], width: float) -> torch.Tensor:
    """Target chances ``[n, vocabulary]``: a bell of standard deviation ``width`` over the multiples of 5 around each rating.

    The likeliest is the rating itself; its neighbours teach that ratings are ordered, which single tokens do not show.
    """
    values = torch.arange(0, 101, STEP)
    bell = torch.exp(-((values - ratings[:, None]).float() ** 2) / (2 * width**2))
    out = torch.zeros(len(ratings), vocabulary)
    out[:, torch.tensor([token_of(int(v)) for v in values])] = bell / bell.sum(1, keepdim=True)
    return out
