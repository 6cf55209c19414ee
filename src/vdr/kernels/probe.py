"""What a freshly loaded library has to answer before it is used: small cases at the edges of its tiles, beside plain NumPy.

A kernel that is wrong on one kind of processor is wrong at such edges. The probe takes a few milliseconds a process.
"""

from __future__ import annotations

import ctypes

import numpy as np

from vdr.kernels.native import PAIRS

__all__ = ["wrong_answer"]

#: Around every tile of Ward's matrix: register pairs of 16 and 32 floats, rows that end inside one.
WARD_SIZES = (2, 15, 17, 31, 33, 47, 49)
#: Query vectors around half a register, a register and a block of three; page vectors around the row groups of 4 to 12.
LANES = (1, 4, 5, 9, 16, 25, 49)
ROWS = (1, 4, 7, 13, 25)


def wrong_answer(library: ctypes.CDLL) -> str | None:
    """What the library gets wrong, in a line; None if it answers as the twins do."""
    rng = np.random.default_rng(7)
    for n in WARD_SIZES:
        features = rng.standard_normal((n, 5)).astype(np.float32)
        if not np.array_equal(_ward(library, features), _ward_twin(features)):
            return f"Ward's clustering of {n} vectors is not its twin's"
    for queries in LANES:
        for rows in ROWS:
            q, p = (rng.standard_normal((count, 6)).astype(np.float32) for count in (queries, rows))
            said, twin = _maxsim(library, q, p), (q.astype(np.float64) @ p.T.astype(np.float64)).max(1).sum()
            if not abs(said - twin) <= 1e-4 * max(1.0, abs(twin)):
                return f"MaxSim of {queries} query and {rows} page vectors is not its twin's"
            if library.vdr_pairs() and not abs(_maxsim(library, q, p, pairs=True) - _bf16_twin(q, p)) <= 1e-4 * max(1.0, abs(twin)):
                return f"MaxSim of {queries} query and {rows} page vectors in bf16 is not its twin's"
    return None


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _ward(library: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    """Squared heights of all merges, rising, in fp32."""
    n = len(x)
    left, right, height = np.zeros(n - 1, np.int32), np.zeros(n - 1, np.int32), np.zeros(n - 1)
    failed = library.vdr_ward(_at(x), ctypes.c_int64(n), ctypes.c_int64(x.shape[1]), _at(left), _at(right), _at(height))
    return np.full(n - 1, np.nan) if failed else np.sort(height).astype(np.float32)


def _ward_twin(x: np.ndarray) -> np.ndarray:
    """The same by trying every pair at every merge."""
    means, sizes, heights = [row.astype(np.float64) for row in x], [1.0] * len(x), []
    while len(means) > 1:
        m, s = np.stack(means), np.array(sizes)
        cost = np.square(m[:, None] - m[None]).sum(2) * 2 * s[:, None] * s[None] / (s[:, None] + s[None])
        np.fill_diagonal(cost, np.inf)
        a, b = sorted(np.unravel_index(int(cost.argmin()), cost.shape))
        heights.append(cost[a, b])
        means[a] = (means[a] * sizes[a] + means[b] * sizes[b]) / (sizes[a] + sizes[b])
        sizes[a] += sizes[b]
        del means[b], sizes[b]
    return np.sort(np.array(heights)).astype(np.float32)


def _bf16(x: np.ndarray) -> np.ndarray:
    """The upper halves of fp32 numbers: bf16, as uint16."""
    return (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)


def _bf16_twin(q: np.ndarray, p: np.ndarray) -> float:
    q, p = ((_bf16(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (q, p))
    return float((q @ p.T).max(1).sum())


def _maxsim(library: ctypes.CDLL, q: np.ndarray, p: np.ndarray, *, pairs: bool = False) -> float:
    lanes, width, kind = library.vdr_lanes(), np.array([q.shape[1]], np.int32), PAIRS if pairs else 0
    if pairs:
        p, q = _bf16(p), _bf16(q).view(np.float32)
    blocks = []
    for start in range(0, len(q), 3 * lanes):
        part = q[start : start + 3 * lanes]
        block = np.zeros((q.shape[1], -(-len(part) // (lanes // 2)) * (lanes // 2)), np.float32)
        block[:, : len(part)] = part.T
        blocks.append(block)
    table = (ctypes.c_void_p * len(blocks))(*[block.ctypes.data for block in blocks])
    long, none = ctypes.c_int64, ctypes.c_void_p(None)
    qo, po = np.array([0, len(q)], np.int64), np.array([0, len(p)], np.int64)
    score = np.full((1, 1, 1), np.nan, np.float32)
    library.vdr_maxsim(
        table, long(len(q)), none, _at(qo), long(1), _at(p), kind, long(p.shape[1]), _at(po), _at(po[1:]), long(0), long(1), none,
        1, _at(width), 0, none, 0, _at(score), long(1), long(1), none, long(0),
    )  # fmt: skip
    return float(score[0, 0, 0])
