"""Rung 2, the campaign's baseline: one program a head, BLOCK_T tokens at a time, multiply and sum.

Against rung 1 it reads a tile of tokens at once, so that loads overlap. Two defects remain, and chapter 1
measures both: each of the H programs of a row gathers and dequantises the same tokens, and the products run on
the float32 lanes while the tensor cores idle. It also walks the whole index width, whatever the row's length.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._per_head_loads import load_tokens, rounded_product


@triton.jit
def attend_tiles(
    q_nope, q_rope, acc_nope, acc_rope, m, total,
    cache_ptr, indices_ptr, length, width, page_stride, scale_log2,
    PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Fold every candidate of one cache into one head's running attention, over the whole index width."""
    for start in range(0, width, BLOCK_T):
        position = start + tl.arange(0, BLOCK_T)
        slot = tl.load(indices_ptr + position, mask=position < length, other=-1)
        valid = slot >= 0
        nope, rope = load_tokens(
            cache_ptr, slot, valid, page_stride, PAGE_SIZE, ALIGNED
        )  # [BLOCK_T, 512], [.., 64]
        scores = tl.sum(nope * q_nope[None, :], 1)  # [BLOCK_T]
        scores += tl.sum(rounded_product(rope, q_rope[None, :]), 1)
        scores = tl.where(valid, scores * scale_log2, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, 0))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        weights = tl.exp2(scores - reference)
        rescale = tl.exp2(m - reference)
        acc_nope = acc_nope * rescale + tl.sum(rounded_product(nope, weights[:, None]), 0)
        acc_rope = acc_rope * rescale + tl.sum(rounded_product(rope, weights[:, None]), 0)
        total = total * rescale + tl.sum(weights, 0)
        m = m_new
    return acc_nope, acc_rope, m, total
