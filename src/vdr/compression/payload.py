"""Payload accounting (EV §5.2, eq. 11): bytes of stored vectors alone, two a component, in GiB per million pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vdr.errors import BadInput

__all__ = ["BUDGETS", "PAPER_CONFIGURATIONS", "Configuration", "equal_payload", "payload_bytes", "payload_gib", "reduction"]

MILLION = 1_000_000


@dataclass(frozen=True)
class Configuration:
    """K vectors of width d a page."""

    name: str
    k: int
    d: int

    @property
    def gib_per_million(self) -> float:
        return payload_gib(MILLION, self.k, self.d)


def payload_bytes(pages: float, k: float, d: int, component: int = 2) -> float:
    """Bytes of ``pages`` pages with k vectors of width d; ids, offsets and containers are not counted."""
    if pages < 0 or k < 0 or d < 1 or component < 1:
        raise BadInput(f"payload needs pages, k ≥ 0 and d, component ≥ 1, got {pages}, {k}, {d}, {component}")
    return component * pages * k * d


def payload_gib(pages: float, k: float, d: int, component: int = 2) -> float:
    """:func:`payload_bytes` in units of 2^30 bytes (EV eq. 11)."""
    return payload_bytes(pages, k, d, component) / 2**30


def reduction(k: int, d: int, reference: tuple[int, int] = (1024, 256)) -> float:
    """How many times smaller than the reference (vectors, width); EV's is 1024×256."""
    return reference[0] * reference[1] / (k * d)


#: EV Table 1: vectors a page and width of each configuration. The last two columns follow from them.
PAPER_CONFIGURATIONS = (
    Configuration("raw d256", 1024, 256),
    Configuration("ColPali 1024 d128", 1024, 128),
    Configuration("raw d128", 1024, 128),
    Configuration("raw d64", 1024, 64),
    Configuration("HAC d128 K32", 32, 128),
    Configuration("HAC d64 K64", 64, 64),
    Configuration("HAC d64 K32", 32, 64),
)

#: Components a page (K·d) of EV Table 11's three budgets: 3.81, 7.63 and 15.26 GiB per million pages.
BUDGETS = (2048, 4096, 8192)


def equal_payload(budget: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    """(d, K) pairs that spend exactly ``budget`` components a page, for the widths that divide it."""
    return [(d, budget // d) for d in widths if budget % d == 0]
