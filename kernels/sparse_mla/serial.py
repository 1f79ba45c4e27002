"""Rung 1: one program a head, one token after the other. The version that the campaign's baseline replaced.

Each step waits for its index, then for its bytes, then for a sum over the program's threads: three latencies a
token, none of them hidden behind another token's.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._tile import load_rope, locate


@triton.jit
def attend_serial(
    q_nope, q_rope, acc_nope, acc_rope, m, total,
    cache_ptr, indices_ptr, length, page_stride, scale_log2,
    PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Fold the first `length` candidates of one cache, one at a time, into one head's running attention."""
    column = tl.arange(0, 512)
    used = column < 448
    for position in range(0, length):
        slot = tl.load(indices_ptr + position)
        if slot >= 0:
            token, scale = locate(slot, page_stride, PAGE_SIZE)
            raw = tl.load(cache_ptr + token + column, mask=used, other=0)
            byte = tl.load(cache_ptr + scale + column // 64, mask=used, other=127)
            nope = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32) * tl.exp2(byte.to(tl.float32) - 127.0)
            rope = tl.sum(load_rope(cache_ptr, token + tl.zeros((1,), tl.int64), tl.full((1,), 1, tl.int1), ALIGNED)
                          .to(tl.float32), 0)  # fmt: skip
            score = (tl.sum(nope * q_nope, 0) + tl.sum(rope * q_rope, 0)) * scale_log2
            m_new = tl.maximum(m, score)
            weight = tl.exp2(score - m_new)
            rescale = tl.exp2(m - m_new)
            acc_nope = acc_nope * rescale + nope * weight
            acc_rope = acc_rope * rescale + rope * weight
            total = total * rescale + weight
            m = m_new
    return acc_nope, acc_rope, m, total
