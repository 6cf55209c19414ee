"""Nested prefix widths: one affine projection, any trained width by slicing and renormalising (EV §3.2, eq. 2).

A narrower representation is a slice of the full one, so no page is encoded again. Only widths that a student was trained
at are offered: slicing elsewhere gives vectors of the right shape whose ranking nobody trained (EV's B0 ablation), and has
to be asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from vdr.errors import BadInput
from vdr.models.vectors import VectorSet
from vdr.textfiles import whole_number

__all__ = ["PrefixProjection", "Widths", "narrow", "prefix_rows"]


@dataclass(frozen=True)
class Widths:
    """Trained widths of a checkpoint, rising; the last is the full width D."""

    trained: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.trained or self.trained[0] < 1 or any(a >= b for a, b in pairwise(self.trained)):
            raise BadInput(f"trained widths must be positive and rise, got {list(self.trained)}")

    @classmethod
    def named(cls, text: str) -> Widths:
        """From text such as ``64,128``."""
        widths = [whole_number(part.strip()) for part in text.split(",")]
        if None in widths:
            raise BadInput(f"trained widths must be whole numbers, got {text!r}", todo="write them as 64,128")
        return cls(tuple(w for w in widths if w is not None))

    @property
    def full(self) -> int:
        return self.trained[-1]

    def check(self, d: int, *, post_hoc: bool = False) -> int:
        """d, if the checkpoint was trained at it. ``post_hoc`` also allows other widths up to the full one (EV's B0)."""
        if d in self.trained or (post_hoc and 1 <= d <= self.full):
            return d
        known = ", ".join(map(str, self.trained))
        raise BadInput(f"width {d} was not trained (trained: {known})", todo="choose a trained width, or ask for "
                       "post-hoc truncation by name" if d <= self.full else "choose a trained width")


class PrefixProjection(nn.Module):
    """W x + b shared by queries and pages, of which every trained prefix is a representation (EV eq. 2).

    ``forward(hidden [..., h], mask [...] | None, d)`` → ``[..., d]``: rows normalised after slicing, zero rows and rows
    outside the mask zero. fp32 weights whatever the backbone's dtype. ``grow`` starts a wider head from a narrower one, its
    first rows kept (EV §3.2: the student keeps the first 128 rows of its predecessor's head).
    """

    def __init__(self, hidden: int, widths: Widths) -> None:
        super().__init__()
        self.widths = widths
        self.linear = nn.Linear(hidden, widths.full, dtype=torch.float32)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None, d: int | None = None) -> torch.Tensor:
        width = self.widths.check(self.widths.full if d is None else d)
        with torch.autocast(hidden.device.type, enabled=False):
            linear = self.linear
            rows = nn.functional.linear(hidden.float(), linear.weight[:width], linear.bias[:width])
        rows = prefix_rows(rows, width)
        return rows if mask is None else rows * mask.unsqueeze(-1).to(rows.dtype)

    @torch.no_grad()
    def grow(self, narrower: nn.Linear) -> PrefixProjection:
        """Copy a narrower head's rows and bias over this one's first rows; returns self."""
        if narrower.in_features != self.linear.in_features or narrower.out_features > self.widths.full:
            raise BadInput(f"a head of {narrower.in_features}→{narrower.out_features} does not fit into "
                           f"{self.linear.in_features}→{self.widths.full}")
        self.linear.weight[: narrower.out_features] = narrower.weight
        self.linear.bias[: narrower.out_features] = 0.0 if narrower.bias is None else narrower.bias
        return self


def prefix_rows(rows: torch.Tensor, d: int) -> torch.Tensor:
    """The first d components of each row, normalised; zero rows stay zero, with a zero gradient instead of NaN."""
    part = rows[..., :d]
    square = part.square().sum(-1, keepdim=True)
    zero = square == 0
    return torch.where(zero, torch.zeros_like(part), part * torch.where(zero, torch.ones_like(square), square).rsqrt())


def narrow(vectors: VectorSet, d: int, widths: Widths | Iterable[int] | None = None, *, post_hoc: bool = False) -> VectorSet:
    """A set of vectors at width d: sliced and renormalised in fp32, stored in the set's own dtype; the same set at full width.

    ``widths`` are those the encoder was trained at (None: only the full width). Raises BadInput for any other width.
    """
    known = widths if isinstance(widths, Widths) else Widths(tuple(widths) if widths is not None else (vectors.width,))
    if known.full != vectors.width:
        raise BadInput(f"vectors are {vectors.width} wide, the encoder's full width is {known.full}")
    known.check(d, post_hoc=post_hoc)
    if d == vectors.width:
        return vectors
    rows = prefix_rows(torch.from_numpy(np.ascontiguousarray(vectors.vectors[:, :d])).float(), d).numpy()
    return VectorSet(vectors.ids, rows.astype(vectors.vectors.dtype), vectors.offsets, vectors.is_image, vectors.grid)
