"""The Triton kernel of :mod:`vdr.kernels.triton_maxsim`; imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def best_products(q_ptr, p_ptr, mask_ptr, best_ptr, at_ptr, LQ, LP, D, C, PAIRED: tl.constexpr, MASKED: tl.constexpr,
                  BQ: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr):
    """One program a (query, page) pair and block of query vectors: running maxima over blocks of page vectors."""
    pair = tl.program_id(0).to(tl.int64)
    query, page = pair // C, pair % C
    column = page
    if PAIRED:
        page = pair
    rows_q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    in_q = rows_q < LQ
    best = tl.full([BQ], float("-inf"), tl.float32)
    at = tl.zeros([BQ], tl.int32)
    for start in range(0, LP, BP):
        rows_p = start + tl.arange(0, BP)
        valid = rows_p < LP
        acc = tl.zeros([BQ, BP], tl.float32)
        for k in range(0, D, BD):
            columns = k + tl.arange(0, BD)
            in_d = columns < D
            x = tl.load(q_ptr + (query * LQ + rows_q)[:, None] * D + columns[None, :], mask=in_q[:, None] & in_d[None, :], other=0.0)
            y = tl.load(p_ptr + (page * LP + rows_p)[:, None] * D + columns[None, :], mask=valid[:, None] & in_d[None, :], other=0.0)
            acc += tl.dot(x, tl.trans(y), input_precision="ieee")
        if MASKED:
            valid = valid & (tl.load(mask_ptr + page * LP + rows_p, mask=valid, other=0) != 0)
        acc = tl.where(valid[None, :], acc, float("-inf"))
        top, place = tl.max(acc, axis=1, return_indices=True)
        better = top > best
        at = tl.where(better, start + place, at)
        best = tl.where(better, top, best)
    out = (query * LQ + rows_q) * C + column
    tl.store(best_ptr + out, best, mask=in_q)
    tl.store(at_ptr + out, at, mask=in_q)
