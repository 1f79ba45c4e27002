"""Idea: fetch a tile as bytes where rung `split_k` fetches 32-bit words. It is also the control of all variants.

The rung splits a word into four numbers and joins them again, and the compiler follows the joins with register
moves. A tile of bytes has its final shape from the start: the same assembler text gets four neighbouring bytes of
it, and neighbours come back. OPTION is the function that turns bytes and scales into operands.

Q bfloat16 [BLOCK_H, 512], K and V uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64], sums float32.
"""

import triton
import triton.language as tl

from kernels.lab.variants._frame import (
    cast,
    fetch_slots,
    load_bytes,
    load_columns,
    load_rotary,
    load_scales,
    reciprocal,
    rows_of,
    store_columns,
)
from kernels.sparse_mla._dequantize import to_bfloat16
from kernels.sparse_mla._tile import dot, update_online_softmax


@triton.jit
def attend(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
    out_ptr, part,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OPTION: tl.constexpr,
):  # fmt: skip
    q_a = load_columns(q_ptr, head, heads, stride_head, 0, 256)
    q_b = load_columns(q_ptr, head, heads, stride_head, 256, 128)
    q_c = load_columns(q_ptr, head, heads, stride_head, 384, 64)
    q_r = load_columns(q_ptr, head, heads, stride_head, 448, 64)
    acc_a = tl.zeros((BLOCK_H, 256), tl.float32)
    acc_b = tl.zeros((BLOCK_H, 128), tl.float32)
    acc_c = tl.zeros((BLOCK_H, 64), tl.float32)
    acc_r = tl.zeros((BLOCK_H, 64), tl.float32)
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    slot = fetch_slots(indices_ptr, first, last, length, BLOCK_T)
    next_slot = fetch_slots(indices_ptr, first + 1, last, length, BLOCK_T)
    row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
    raw_a, raw_b, raw_c = (
        load_bytes(row, valid, 0, 4),
        load_bytes(row, valid, 4, 2),
        load_bytes(row, valid, 6, 1),
    )
    s_a, s_b, s_c = (
        load_scales(scale, valid, 0, 4),
        load_scales(scale, valid, 4, 2),
        load_scales(scale, valid, 6, 1),
    )
    raw_r = load_rotary(row, valid)
    for tile in range(first, last):
        live = slot >= 0
        k_a, k_b = OPTION(raw_a, s_a, BLOCK_T, 256), OPTION(raw_b, s_b, BLOCK_T, 128)
        k_c, k_r = OPTION(raw_c, s_c, BLOCK_T, 64), raw_r
        slot = next_slot
        row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
        raw_a, raw_b = load_bytes(row, valid, 0, 4), load_bytes(row, valid, 4, 2)
        raw_c, raw_r = load_bytes(row, valid, 6, 1), load_rotary(row, valid)
        s_a, s_b = load_scales(scale, valid, 0, 4), load_scales(scale, valid, 4, 2)
        s_c = load_scales(scale, valid, 6, 1)
        next_slot = fetch_slots(indices_ptr, tile + 2, last, length, BLOCK_T)

        scores = tl.zeros((BLOCK_H, BLOCK_T), tl.float32)
        scores = dot(q_a.to(k_a.dtype), tl.trans(k_a), scores)
        scores = dot(q_b.to(k_b.dtype), tl.trans(k_b), scores)
        scores = dot(q_c.to(k_c.dtype), tl.trans(k_c), scores)
        scores = dot(q_r, tl.trans(k_r), scores)
        scores = tl.where(live[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        p = cast(weights, k_a.dtype)
        acc_a = dot(p, k_a, acc_a * rescale[:, None])
        acc_b = dot(p, k_b, acc_b * rescale[:, None])
        acc_c = dot(p, k_c, acc_c * rescale[:, None])
        acc_r = dot(to_bfloat16(weights), k_r, acc_r * rescale[:, None])
    factor = reciprocal(total)
    store_columns(out_ptr, head, heads, acc_a, factor, 0, 256)
    store_columns(out_ptr, head, heads, acc_b, factor, 256, 128)
    store_columns(out_ptr, head, heads, acc_c, factor, 384, 64)
    store_columns(out_ptr, head, heads, acc_r, factor, 448, 64)
    return m, total
