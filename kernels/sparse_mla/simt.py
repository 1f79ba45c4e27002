"""Rung 2, the campaign's baseline: one program a head, BLOCK_T tokens at a time, multiply and sum.

Against rung 1 it reads a tile of tokens at once, so that loads overlap. Two defects remain, and chapter 1
measures both: each of the H programs of a row gathers and dequantises the same tokens, and the products run on
the float32 lanes while the tensor cores idle. It also walks the whole index width, whatever the row's length.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._tile import load_rope, load_slots, locate


@triton.jit
def load_row_tile(cache_ptr, indices_ptr, position, length, page_stride, PAGE_SIZE: tl.constexpr,
                  ALIGNED: tl.constexpr):
    """A tile of dequantised tokens in float32: nope [BLOCK_T, 512] (448 used), rope [BLOCK_T, 64], valid."""
    slot, valid = load_slots(indices_ptr, position, length)
    token, scale = locate(slot, page_stride, PAGE_SIZE)
    column = tl.arange(0, 512)[None, :]
    used = valid[:, None] & (column < 448)
    raw = tl.load(cache_ptr + token[:, None] + column, mask=used, other=0)
    byte = tl.load(cache_ptr + scale[:, None] + column // 64, mask=used, other=127)
    nope = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32) * tl.exp2(byte.to(tl.float32) - 127.0)
    rope = load_rope(cache_ptr, token, valid, ALIGNED).to(tl.float32)
    return nope, rope, valid


@triton.jit
def attend_tiles(
    q_nope, q_rope, acc_nope, acc_rope, m, total,
    cache_ptr, indices_ptr, length, width, page_stride, scale_log2,
    PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Fold every candidate of one cache into one head's running attention, over the whole index width."""
    for start in range(0, width, BLOCK_T):
        position = start + tl.arange(0, BLOCK_T)
        nope, rope, valid = load_row_tile(cache_ptr, indices_ptr, position, length, page_stride, PAGE_SIZE, ALIGNED)
        scores = tl.sum(nope * q_nope[None, :], 1) + tl.sum(rope * q_rope[None, :], 1)  # [BLOCK_T]
        scores = tl.where(valid, scores * scale_log2, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, 0))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        weights = tl.exp2(scores - reference)
        rescale = tl.exp2(m - reference)
        acc_nope = acc_nope * rescale + tl.sum(nope * weights[:, None], 0)
        acc_rope = acc_rope * rescale + tl.sum(rope * weights[:, None], 0)
        total = total * rescale + tl.sum(weights, 0)
        m = m_new
    return acc_nope, acc_rope, m, total
