"""Rung 1: one program a head, one token after the other. The version that the campaign's baseline replaced.

Each step waits for its index, then for its bytes, then for a sum over the program's threads: three latencies a
token, none of them hidden behind another token's.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._per_head_loads import load_tokens, rounded_product


@triton.jit
def attend_serial(
    q_nope, q_rope, acc_nope, acc_rope, m, total,
    cache_ptr, indices_ptr, length, page_stride, scale_log2,
    PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Fold the first `length` candidates of one cache, one at a time, into one head's running attention."""
    for position in range(0, length):
        slot = tl.load(indices_ptr + position)
        if slot >= 0:
            tokens = tl.full((1,), 0, tl.int32) + slot
            nope, rope = load_tokens(cache_ptr, tokens, tokens >= 0, page_stride, PAGE_SIZE, ALIGNED)
            nope = tl.sum(nope, 0)  # a tile of one token, as rows [512] and [64]
            rope = tl.sum(rope, 0)
            score = (tl.sum(nope * q_nope, 0) + tl.sum(rounded_product(rope, q_rope), 0)) * scale_log2
            m_new = tl.maximum(m, score)
            weight = tl.exp2(score - m_new)
            rescale = tl.exp2(m - m_new)
            acc_nope = acc_nope * rescale + nope * weight
            acc_rope = acc_rope * rescale + rope * weight
            total = total * rescale + weight
            m = m_new
    return acc_nope, acc_rope, m, total
