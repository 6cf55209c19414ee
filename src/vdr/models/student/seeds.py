"""One seed a source of randomness."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vdr.errors import BadInput

__all__ = ["Seeds"]


@dataclass(frozen=True)
class Seeds:
    """One seed a source of randomness, so that each can be varied alone (WT App. I, Table 10)."""

    order: int
    lora: int
    projection: int
    dropout: int

    @classmethod
    def of(cls, seed: int | Mapping[str, int]) -> Seeds:
        """From one seed for all, or from a mapping that names all four."""
        if isinstance(seed, int):
            return cls(seed, seed, seed, seed)
        if set(seed) != {"order", "lora", "projection", "dropout"}:
            raise BadInput(f"seeds for {sorted(seed)}", where="seed", todo="name order, lora, projection and dropout")
        return cls(**seed)

    def generator(self, stream: str) -> torch.Generator:
        """A generator of its own for `stream`; equal seeds in different streams give unrelated numbers."""
        digest = hashlib.sha256(f"{stream}:{getattr(self, stream)}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
