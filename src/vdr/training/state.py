"""A run's checkpoints while it trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["RunState"]


@dataclass
class RunState:
    """step: steps done; weights by trainable name; optimiser state; rng: torch's global generator (adapter dropout
    draws from it); losses and validations so far; fingerprint: what run this is. The batch order is a function of
    seed and step.
    """

    step: int
    weights: dict[str, torch.Tensor]
    optimiser: dict[str, Any]
    rng: list[torch.Tensor]
    fingerprint: str
    losses: list[list[float]] = field(default_factory=list)
    validations: list[list[float]] = field(default_factory=list)
