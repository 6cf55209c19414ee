"""Calls into the native MaxSim (`csrc/maxsim.c`): layout of query lanes, threads over pages, gradients.

Internal: the public functions of :mod:`vdr.kernels.maxsim` check their input and choose the path.
"""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import torch

from vdr.kernels import native
from vdr.kernels.native import pointer

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: Below this many multiply-adds a call stays in one thread: waking another costs about 50 µs.
SINGLE = 4_000_000


class Lanes:
    """Query vectors [T, D] transposed into blocks of lanes; owns the memory that the C pointers refer to.

    ``pairs``: bf16 vectors of an even width stay bf16, two neighbouring columns in each lane.
    """

    def __init__(self, q: torch.Tensor, *, pairs: bool = False) -> None:
        library = native.library()
        assert library is not None
        vl = library.vdr_lanes()
        q32 = q.detach().float()
        self.q = q32 if q32.is_contiguous() else q32.contiguous()
        total = len(self.q)
        columns = q.detach() if pairs else self.q
        if pairs:  # [T, D / 2] of 32 bits
            columns = columns.contiguous().view(torch.int32)
        self.blocks = []
        for start in range(0, total, 3 * vl):
            rows = min(3 * vl, total - start)
            block = torch.zeros(columns.shape[1], -(-rows // (vl // 2)) * (vl // 2), dtype=columns.dtype)
            block[:, :rows] = columns[start:start + rows].T
            self.blocks.append(block)
        self.table = (ctypes.c_void_p * max(1, len(self.blocks)))(*[block.data_ptr() for block in self.blocks])


def pages_of(p: torch.Tensor) -> torch.Tensor:
    """Contiguous rows in a storage type that the kernel widens itself."""
    p = p.detach()
    return (p if p.dtype in KINDS else p.float()).contiguous()


def score(lanes: Lanes, qo: np.ndarray, p: torch.Tensor, po: np.ndarray, first: int, last: int, scores: np.ndarray, *,
          weight: torch.Tensor | None = None, mask: torch.Tensor | None = None, widths: list[int] | None = None,
          inverse: np.ndarray | None = None, mean: bool = False, at: torch.Tensor | None = None,
          ends: np.ndarray | None = None, pairs: bool = False) -> None:
    """Fill ``scores [W, nq, last - first]`` (a view with unit last stride) and ``at [T, last - first]``.

    Page j is rows ``po[j]:po[j + 1]``, or ``po[j]:ends[j]``.
    """
    library = native.library()
    assert library is not None
    ladder = np.asarray([p.shape[-1]] if widths is None else widths, dtype=np.int32)
    long = ctypes.c_int64
    failed = library.vdr_maxsim(
        lanes.table, long(len(lanes.q)), pointer(weight), pointer(qo), long(len(qo) - 1),
        pointer(p), native.PAIRS if pairs else KINDS[p.dtype], long(p.shape[-1]), pointer(po), pointer(po[1:] if ends is None else ends),
        long(first), long(last), pointer(mask),
        len(ladder), pointer(ladder), int(widths is not None), pointer(inverse), int(mean),
        pointer(scores), long(scores.strides[0] // 4), long(scores.strides[1] // 4),
        pointer(at), long(0 if at is None else at.stride(0)))
    if failed:
        raise MemoryError("native MaxSim: not enough memory for its strips")


def parts(po: np.ndarray, work_per_row: int) -> list[tuple[int, int]]:
    """Page ranges of about equal numbers of vectors, several a thread so that a slow thread is not waited for."""
    pages = len(po) - 1
    workers = native.threads()
    if workers == 1 or pages < 2 or (po[-1] - po[0]) * work_per_row < SINGLE:
        return [(0, pages)] if pages else []
    count = min(pages, workers * 4)
    cuts = np.searchsorted(po, np.linspace(po[0], po[-1], count + 1)[1:-1])
    edges = sorted({0, pages, *cuts.tolist()})
    return list(itertools.pairwise(edges))


def search(q: torch.Tensor, qo: np.ndarray, p: torch.Tensor, po: np.ndarray, widths: list[int] | None,
           chosen: np.ndarray | None = None) -> np.ndarray:
    """Ragged search → [W, queries, pages]; W = 1 without widths; ``chosen`` pages alone if given, none of them copied."""
    library = native.library()
    assert library is not None
    # Only where nothing has to be rounded for it: both sides are bf16 already.
    even = widths is None and q.shape[1] % 2 == 0
    pairs = bool(even and q.dtype == p.dtype == torch.bfloat16 and library.vdr_pairs())
    lanes, pages = Lanes(q, pairs=pairs), pages_of(p)
    inverse = None
    if widths is not None:
        norms = lanes.q.square().cumsum(1)[:, [w - 1 for w in widths]].sqrt()
        inverse = torch.where(norms == 0, 0.0, 1.0 / norms).T.contiguous().numpy()
    starts, ends = (po[:-1], po[1:]) if chosen is None else (po[chosen], po[chosen + 1])
    reach = po if chosen is None else np.concatenate([[0], np.cumsum(ends - starts)])
    out = np.empty((1 if widths is None else len(widths), len(qo) - 1, len(starts)), dtype=np.float32)

    def fill(part: tuple[int, int]) -> None:
        score(lanes, qo, pages, starts, *part, out[:, :, part[0]:], widths=widths, inverse=inverse, ends=ends,
              pairs=pairs)

    native.run(fill, parts(reach, len(q) * q.shape[1]))
    out[:, np.diff(qo) == 0] = 0.0
    return out


def batch(q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor, p_mask: torch.Tensor | None, mean: bool
          ) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [B, C] and winners int32 [B, Lq, C] of the training shapes; q [B, Lq, D], p [C, Lp, D] or [B, C, Lp, D]."""
    b, lq, _ = q.shape
    c, lp = p.shape[-3], p.shape[-2]
    scores = torch.empty((b, c), dtype=torch.float32)
    winners = torch.empty((b, lq, c), dtype=torch.int32)
    pages = pages_of(p).reshape(-1, p.shape[-1])
    valid = None if p_mask is None else p_mask.contiguous().view(torch.uint8)
    weight = q_mask.to(torch.float32).contiguous()
    if p.dim() == 3:
        lanes, po = Lanes(q.reshape(b * lq, -1)), np.arange(c + 1, dtype=np.int64) * lp
        qo, out, at = np.arange(b + 1, dtype=np.int64) * lq, scores.numpy()[None], winners.view(b * lq, c)

        def fill(part: tuple[int, int]) -> None:
            score(lanes, qo, pages, po, *part, out[:, :, part[0]:], weight=weight, mask=valid, mean=mean, at=at[:, part[0]:])

        native.run(fill, parts(po, b * lq * q.shape[-1]))
        return scores, winners
    po, qo = np.arange(b * c + 1, dtype=np.int64) * lp, np.array([0, lq], dtype=np.int64)

    def one(i: int) -> None:
        score(Lanes(q[i]), qo, pages, po, i * c, (i + 1) * c, scores.numpy()[None, i:i + 1], weight=weight[i], mask=valid,
              mean=mean, at=winners[i])

    small = b * c * lq * lp * q.shape[-1] < SINGLE
    native.run(one, range(b), workers=1 if small else None)
    return scores, winners


def gradients(q: torch.Tensor, p: torch.Tensor, q_mask: torch.Tensor, winners: torch.Tensor, weight: torch.Tensor,
              want_q: bool, want_p: bool) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients in fp32 from ``weight`` [B, C] = d loss / d sum; each row is added up in one thread, in a fixed order."""
    library = native.library()
    assert library is not None
    (b, lq, d), c, lp = q.shape, p.shape[-3], p.shape[-2]
    q32, p32 = q.float().contiguous(), p.float().contiguous()
    g, valid = weight.contiguous(), q_mask.to(torch.float32).contiguous()
    gq = torch.zeros(q.shape, dtype=torch.float32) if want_q else None
    gp = torch.zeros(p.shape, dtype=torch.float32) if want_p else None
    long = ctypes.c_int64
    size = 4 * d
    if p.dim() == 3:
        qo, at = np.arange(b + 1, dtype=np.int64) * lq, winners

        def to_pages(part: tuple[int, int]) -> None:
            library.vdr_maxsim_grad_pages(pointer(q32), pointer(valid), pointer(qo), long(b), long(d), pointer(g), long(c),
                                          pointer(at), long(c), long(lp), long(part[0]), long(part[1]), pointer(gp))

        def to_queries(part: tuple[int, int]) -> None:
            library.vdr_maxsim_grad_queries(pointer(p32), pointer(valid), pointer(qo), long(part[0]), long(part[1]), long(d),
                                            pointer(g), long(c), pointer(at), long(c), long(lp), long(c), pointer(gq))

        if gp is not None:
            native.run(to_pages, parts(np.arange(c + 1, dtype=np.int64), b * lq * d))
        if gq is not None:
            native.run(to_queries, parts(np.arange(b + 1, dtype=np.int64), c * lq * d))
        return gq, gp
    qo = np.array([0, lq], dtype=np.int64)

    def one(i: int) -> None:
        own = ctypes.c_void_p(q32.data_ptr() + i * lq * size), ctypes.c_void_p(valid.data_ptr() + i * lq * 4)
        pages = i * c * lp * size
        at, gi = ctypes.c_void_p(winners.data_ptr() + i * lq * c * 4), ctypes.c_void_p(g.data_ptr() + i * c * 4)
        if gp is not None:
            library.vdr_maxsim_grad_pages(*own, pointer(qo), long(1), long(d), gi, long(c), at, long(c), long(lp), long(0),
                                          long(c), ctypes.c_void_p(gp.data_ptr() + pages))
        if gq is not None:
            library.vdr_maxsim_grad_queries(ctypes.c_void_p(p32.data_ptr() + pages), own[1], pointer(qo), long(0), long(1),
                                            long(d), gi, long(c), at, long(c), long(lp), long(c),
                                            ctypes.c_void_p(gq.data_ptr() + i * lq * size))

    native.run(one, range(b), workers=1 if b * c * lq * d < SINGLE else None)
    return gq, gp
