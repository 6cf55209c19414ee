"""Seeded draws that depend on their name alone: not on the order of calls, on shards or on a library's generator."""

from __future__ import annotations

import hashlib

__all__ = ["draw"]


def draw(n: int, *name: object) -> int:
    """An integer in [0, n), fixed by `name` (for example purpose, seed, row id, band).

    64 bits of BLAKE2b of the name, modulo n: the modulo's bias is below n / 2^64. Raises ValueError for n < 1.

    >>> draw(10, "band", 0, 17, 3) == draw(10, "band", 0, 17, 3)
    True
    """
    if n < 1:
        raise ValueError(f"draw needs something to draw from, got n={n}")
    digest = hashlib.blake2b("/".join(map(str, name)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % n
