"""Plain reference twins of the kernels: short, slow, obviously right, and fp64 where that is affordable.

Nothing here is called by a study; the tests compare every fast path against these functions.
"""

from __future__ import annotations

import numpy as np
import torch


def maxsim_pair(q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor | None = None,
                p_mask: torch.Tensor | None = None, reduce: str = "sum") -> torch.Tensor:
    """MaxSim of one query [Lq, D] and one page [Lp, D] by two Python loops' worth of tensor algebra (EV eq. 1, WT §3).

    Masked page vectors never win the maximum and masked query vectors add nothing. A page without a valid vector
    scores -inf, a query without one scores 0. ``reduce="mean"`` divides by the number of valid query vectors.
    """
    q, p = q.double(), p.double()
    q = q if q_mask is None else q[q_mask.bool()]
    p = p if p_mask is None else p[p_mask.bool()]
    if len(q) == 0:
        return (q.sum() + p.sum()) * 0.0
    if len(p) == 0:
        return q.sum() * 0.0 - torch.inf
    best = (q @ p.T).max(dim=1).values
    return best.sum() if reduce == "sum" else best.mean()


def maxsim(q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor | None = None,
           p_mask: torch.Tensor | None = None, reduce: str = "sum") -> torch.Tensor:
    """Reference of :func:`vdr.kernels.maxsim.maxsim` for its three shapes, in fp64, one pair at a time."""
    def row(mask: torch.Tensor | None, *index: int) -> torch.Tensor | None:
        return None if mask is None else mask[index]

    if q.dim() == 2:
        return maxsim_pair(q, p, q_mask, p_mask, reduce)
    rows = []
    for b in range(q.shape[0]):
        pages = [(p[c], row(p_mask, c)) for c in range(p.shape[0])] if p.dim() == 3 else \
            [(p[b, c], row(p_mask, b, c)) for c in range(p.shape[1])]
        scores = [maxsim_pair(q[b], page, row(q_mask, b), mask, reduce) for page, mask in pages]
        rows.append(torch.stack(scores) if scores else q.new_zeros(0, dtype=torch.float64))
    columns = p.shape[0] if p.dim() == 3 else p.shape[1]
    return torch.stack(rows) if rows else q.new_zeros(0, columns, dtype=torch.float64)


def maxsim_search(query_vectors: np.ndarray, query_offsets: np.ndarray, page_vectors: np.ndarray,
                  page_offsets: np.ndarray) -> np.ndarray:
    """Reference of :func:`vdr.kernels.maxsim.maxsim_search` in fp64: one pair at a time, an empty page is -inf."""
    out = np.zeros((len(query_offsets) - 1, len(page_offsets) - 1))
    for i in range(out.shape[0]):
        q = query_vectors[query_offsets[i]:query_offsets[i + 1]].astype(np.float64)
        for j in range(out.shape[1]):
            p = page_vectors[page_offsets[j]:page_offsets[j + 1]].astype(np.float64)
            if len(q):
                out[i, j] = (q @ p.T).max(axis=1).sum() if len(p) else -np.inf
    return out
