"""MaxSim (late interaction): sum or mean over query vectors of the best dot product among a page's vectors.

Source: WT §3 (training, mean over query vectors), EV §3.1 and App. A (evaluation, sum). One rule set for every path:

* masks are arguments; zeros are ordinary vectors;
* products accumulate in fp32 whatever the storage dtype;
* a page without a valid vector scores ``-inf`` (nothing to match), a query without one scores 0;
* among equal products the first page vector wins, and only it receives gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from vdr.errors import BadInput
from vdr.kernels import lanes, native, triton_maxsim

#: Scratch in bytes that a training-shape call may use for products at any moment.
MEMORY_BUDGET = 64 << 20


def maxsim(q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor | None = None, p_mask: torch.Tensor | None = None,
           reduce: str = "sum", *, memory_budget: int = MEMORY_BUDGET) -> torch.Tensor:
    """Differentiable MaxSim in fp32 for three shapes.

    * ``q [Lq, D]``, ``p [Lp, D]`` → scalar;
    * in-batch ``q [B, Lq, D]``, ``p [B', Lp, D]`` → ``[B, B']``, every query against every page;
    * candidates ``q [B, Lq, D]``, ``p [B, C, Lp, D]`` → ``[B, C]``, every query against its own pages.

    ``q_mask [Lq] | [B, Lq]`` and ``p_mask [Lp] | [B', Lp] | [B, C, Lp]`` are true at valid vectors (None: all valid).
    ``reduce="sum"`` for evaluation, ``"mean"`` (over *valid* query vectors) for training. The backward pass keeps one
    index per (query vector, page), never the score tensor; products are formed in slices of ``memory_budget`` bytes.
    Double backward is not offered. Raises :class:`~vdr.errors.BadInput` on shapes or dtypes that do not fit.
    """
    _check(q, p, q_mask, p_mask, reduce)
    if q.dim() == 2:
        q4, p4 = q[None], p[None]
        qm = None if q_mask is None else q_mask[None]
        pm = None if p_mask is None else p_mask[None]
        return maxsim(q4, p4, qm, pm, reduce, memory_budget=memory_budget)[0, 0]
    qm = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if q_mask is None else q_mask.bool()
    pm = None if p_mask is None else p_mask.bool()
    return _MaxSim.apply(q, p, qm, pm, reduce == "mean", memory_budget)


def _check(q: Any, p: Any, q_mask: Any, p_mask: Any, reduce: str) -> None:
    def fail(what: str) -> None:
        raise BadInput(f"maxsim: {what}")

    if reduce not in ("sum", "mean"):
        fail(f"reduce must be 'sum' or 'mean', got {reduce!r}")
    if (q.dim(), p.dim()) not in ((2, 2), (3, 3), (3, 4)):
        fail(f"q and p must be [Lq,D]×[Lp,D], [B,Lq,D]×[B',Lp,D] or [B,Lq,D]×[B,C,Lp,D], "
             f"got {tuple(q.shape)} and {tuple(p.shape)}")
    if q.shape[-1] != p.shape[-1]:
        fail(f"q has width {q.shape[-1]}, p has width {p.shape[-1]}")
    if p.dim() == 4 and q.shape[0] != p.shape[0]:
        fail(f"q has {q.shape[0]} queries, p has candidates for {p.shape[0]}")
    for name, x, mask in (("q", q, q_mask), ("p", p, p_mask)):
        if not x.is_floating_point():
            fail(f"{name} must be floating point, got {x.dtype}")
        if mask is not None and mask.shape != x.shape[:-1]:
            fail(f"{name}_mask must be {tuple(x.shape[:-1])}, got {tuple(mask.shape)}")


def _best(q: torch.Tensor, p: torch.Tensor, p_mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Best product and its index, ``[B, Lq, C]``, for one slice; q ``[B, Lq, D]``, p ``[C, Lp, D] | [B, C, Lp, D]``."""
    if p.dim() == 3:
        products = (q.reshape(-1, q.shape[-1]) @ p.reshape(-1, p.shape[-1]).T).view(*q.shape[:2], *p.shape[:2])
        mask = None if p_mask is None else p_mask[None, None]
    else:
        products = torch.bmm(q, p.flatten(1, 2).transpose(1, 2)).view(*q.shape[:2], *p.shape[1:3])
        mask = None if p_mask is None else p_mask[:, None]
    if mask is not None:
        products = products.masked_fill_(~mask, -torch.inf)
    best, index = products.max(dim=-1)
    return best, index


def _sliced(q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor, p_mask: torch.Tensor | None, budget: int
            ) -> tuple[torch.Tensor, torch.Tensor]:
    """The plain torch path: summed scores [B, C] and winners [B, Lq, C], a few pages at a time."""
    b, lq, _ = q.shape
    c, lp = p.shape[-3], p.shape[-2]
    scores = torch.full((b, c), -torch.inf, dtype=torch.float32, device=q.device)
    index = torch.zeros((b, lq, c), dtype=torch.int32, device=q.device)
    step = max(1, budget // max(1, 4 * b * lq * max(lp, 1)))
    with torch.autocast(q.device.type, enabled=False):
        q32 = q.float()
        for start in range(0, c if lp and b and lq else 0, step):
            part = slice(start, start + step)
            where = (part,) if p.dim() == 3 else (slice(None), part)
            best, at = _best(q32, p[where].float(), None if p_mask is None else p_mask[where])
            index[..., part] = at.to(torch.int32)
            scores[:, part] = best.masked_fill_(~q_mask[..., None], 0.0).sum(1)
    return scores, index


def _on_cpu(q: torch.Tensor, p: torch.Tensor) -> bool:
    """Whether the C kernel takes this call."""
    return native.library() is not None and q.device.type == p.device.type == "cpu" and min(*q.shape, *p.shape) > 0


class _MaxSim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor, p_mask: torch.Tensor | None,
                mean: bool, budget: int) -> torch.Tensor:
        b, lq = q.shape[:2]
        c, lp = p.shape[-3:-1]
        ctx.mean, ctx.budget, ctx.native = mean, budget, _on_cpu(q, p)
        if ctx.native:
            scores, index = lanes.batch(q, p, q_mask, p_mask, mean)
            ctx.save_for_backward(q, p, q_mask, p_mask, index, q_mask.sum(1, dtype=torch.float32))
            return scores
        if min(b, lq, c, lp) and triton_maxsim.available(q, p):
            best, index = triton_maxsim.forward(q, p, p_mask)
            scores = best.masked_fill_(~q_mask[..., None], 0.0).sum(1)
        else:
            scores, index = _sliced(q, p, q_mask, p_mask, budget)
        count = q_mask.sum(1, dtype=torch.float32)
        scores.masked_fill_((count == 0)[:, None], 0.0)
        if mean:
            scores /= count.clamp(min=1)[:, None]
        ctx.save_for_backward(q, p, q_mask, p_mask, index, count)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, p, q_mask, p_mask, index, count = ctx.saved_tensors
        (b, lq, d), c, lp = q.shape, p.shape[-3], p.shape[-2]
        weight = grad.float() / count.clamp(min=1)[:, None] if ctx.mean else grad.float()
        if p_mask is not None:  # a page without a valid vector is a constant -inf
            alive = p_mask.any(-1)
            weight = weight * (alive[None] if p.dim() == 3 else alive)
        if ctx.native:
            gq, gp = lanes.gradients(q, p, q_mask, index, weight, *ctx.needs_input_grad[:2])
            return (None if gq is None else gq.to(q.dtype), None if gp is None else gp.to(p.dtype), None, None, None, None)
        gq = torch.zeros(q.shape, dtype=torch.float32, device=q.device) if ctx.needs_input_grad[0] else None
        gp = torch.zeros(p.shape, dtype=torch.float32, device=q.device) if ctx.needs_input_grad[1] else None
        step = max(1, ctx.budget // max(1, 8 * b * lq * d))
        for start in range(0, c if lp and b and lq else 0, step):
            stop = min(c, start + step)
            w = weight[:, None, start:stop] * q_mask[..., None]  # [B, Lq, c]
            pages = torch.arange(start, stop, device=q.device)
            if p.dim() == 4:
                pages = pages + c * torch.arange(b, device=q.device)[:, None, None]
            rows = index[..., start:stop].long() + pages * lp  # rows of p flattened to [-1, D]
            if gq is not None:
                chosen = p.reshape(-1, d)[rows.reshape(-1)].view(b, lq, stop - start, d).float()
                gq += torch.einsum("bic,bicd->bid", w, chosen)
            if gp is not None:
                gp.view(-1, d).index_add_(0, rows.reshape(-1), (w[..., None] * q.float()[:, :, None]).reshape(-1, d))
        return (None if gq is None else gq.to(q.dtype), None if gp is None else gp.to(p.dtype),
                None, None, None, None)


def maxsim_search(query_vectors: Any, query_offsets: Any, page_vectors: Any, page_offsets: Any, *,
                  pages: Any = None) -> Any:
    """Exact MaxSim of every query against every page, both ragged → fp32 ``[queries, pages]``; sums, no gradient.

    ``query_vectors [sum Lq, D]`` and ``page_vectors [sum Lp, D]`` hold the vectors back to back, item ``i`` being rows
    ``offsets[i]:offsets[i+1]`` (int64, length n + 1). fp16, bf16 (torch) and fp32 storage are accepted and widened to
    fp32 in registers. The result is a tensor if ``query_vectors`` is one, otherwise an array. An item without vectors
    follows the module's rule: empty page -inf, empty query 0; a NaN product makes its score NaN. ``pages`` (page numbers)
    scores those pages alone, in the order given, where they lie. Raises :class:`~vdr.errors.BadInput` when offsets, widths
    or page numbers do not fit.
    """
    q, qo, p, po = _ragged(query_vectors, query_offsets, page_vectors, page_offsets)
    chosen = None if pages is None else np.asarray(pages, dtype=np.int64)
    if chosen is not None and (chosen.ndim != 1 or (len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(po) - 1)):
        raise BadInput(f"maxsim_search: page numbers must lie in 0..{len(po) - 2}")
    scores = _search(q, qo, p, po, None, chosen)[0]
    return torch.from_numpy(scores) if isinstance(query_vectors, torch.Tensor) else scores


def maxsim_search_widths(query_vectors: Any, query_offsets: Any, page_vectors: Any, page_offsets: Any,
                         widths: Sequence[int]) -> Any:
    """Scores at several nested prefix widths in one pass over the pages → fp32 ``[widths, queries, pages]``.

    Equal to slicing both sides to each width, normalising every row (zero rows stay zero) and calling
    :func:`maxsim_search` (EV eq. 2 and 3), but every product is formed once. ``widths`` must rise and end within D.
    """
    q, qo, p, po = _ragged(query_vectors, query_offsets, page_vectors, page_offsets)
    widths = [int(w) for w in widths]
    if not widths or widths[0] < 1 or widths[-1] > q.shape[1] or any(a >= b for a, b in itertools.pairwise(widths)):
        raise BadInput(f"maxsim_search_widths: widths must rise within 1..{q.shape[1]}, got {widths}")
    scores = _search(q, qo, p, po, widths)
    return torch.from_numpy(scores) if isinstance(query_vectors, torch.Tensor) else scores


def _ragged(query_vectors: Any, query_offsets: Any, page_vectors: Any, page_offsets: Any) -> tuple[Any, ...]:
    q, p = torch.as_tensor(query_vectors).detach(), torch.as_tensor(page_vectors).detach()
    if q.dim() != 2 or p.dim() != 2 or q.shape[1] != p.shape[1]:
        raise BadInput(f"maxsim_search: vectors must be [n, D] of one width, got {tuple(q.shape)}, {tuple(p.shape)}")
    if not (q.is_floating_point() and p.is_floating_point()):
        raise BadInput(f"maxsim_search: vectors must be floating point, got {q.dtype} and {p.dtype}")
    return q, _offsets(query_offsets, len(q), "query_offsets"), p, _offsets(page_offsets, len(p), "page_offsets")


def _offsets(offsets: Any, total: int, name: str) -> np.ndarray:
    array = np.asarray(offsets)
    if array.ndim != 1 or len(array) == 0 or array[0] != 0 or array[-1] != total or (np.diff(array) < 0).any():
        raise BadInput(f"maxsim_search: {name} must rise from 0 to the number of vectors ({total})")
    return np.ascontiguousarray(array, dtype=np.int64)


def _search(q: torch.Tensor, qo: np.ndarray, p: torch.Tensor, po: np.ndarray, widths: list[int] | None,
            chosen: np.ndarray | None = None) -> np.ndarray:
    if native.library() is not None and q.device.type == p.device.type == "cpu" and q.shape[1]:
        return lanes.search(q, qo, p, po, widths, chosen)
    if chosen is not None:
        rows = [p[po[j]:po[j + 1]] for j in chosen]
        p, po = torch.cat(rows) if rows else p[:0], np.concatenate([[0], np.cumsum(po[chosen + 1] - po[chosen])])
    if widths is None:
        return _search_blas(q, qo, p, po)[None]
    return np.stack([_search_blas(unit_rows(q[:, :w].float()), qo, unit_rows(p[:, :w].float()), po) for w in widths])


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows divided by their Euclidean norm; zero rows stay zero (EV §3.2, RowL2)."""
    norm = x.norm(dim=-1, keepdim=True)
    return x / torch.where(norm == 0, torch.ones_like(norm), norm)


def _search_blas(q: torch.Tensor, qo: np.ndarray, p: torch.Tensor, po: np.ndarray) -> np.ndarray:
    """The path without a compiler: products in slices, then segment maxima and sums."""
    out = np.full((len(qo) - 1, len(po) - 1), -np.inf, dtype=np.float32)
    q32 = q.float()
    filled, asked = np.flatnonzero(np.diff(po)), np.flatnonzero(np.diff(qo))
    step = max(1, MEMORY_BUDGET // max(1, 4 * len(q)))  # page vectors in one slice
    start = 0
    while start < len(filled) and len(asked):
        stop = start + 1
        while stop < len(filled) and po[filled[stop] + 1] - po[filled[start]] <= step:
            stop += 1
        pages = filled[start:stop]
        base = po[pages[0]]
        products = (q32 @ p[base:po[pages[-1] + 1]].float().T).cpu().numpy()
        best = np.maximum.reduceat(products, po[pages] - base, axis=1)  # [sum Lq, pages]
        out[np.ix_(asked, pages)] = np.add.reduceat(best, qo[asked], axis=0, dtype=np.float64)
        start = stop
    out[np.diff(qo) == 0] = 0.0
    return out
