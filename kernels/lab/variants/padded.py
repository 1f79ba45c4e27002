"""Idea given up by rung 3: 448 nope columns padded to 512, one product instead of three.

A block's width is a power of two, so the shortest program has one nope block of 512 columns whose last 64 are
zeros, and a rotary block. It multiplies 576 columns where 512 would do, and holds 64 columns of sums that stay 0.

Q bfloat16 [BLOCK_H, 512], K and V uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64], sums float32.
"""

import triton
import triton.language as tl

from kernels.lab.variants._frame import (
    cast,
    dequantise,
    fetch_slots,
    load_columns,
    load_rotary,
    reciprocal,
    rows_of,
    store_columns,
)
from kernels.sparse_mla._dequantize import to_bfloat16
from kernels.sparse_mla._tile import dot, update_online_softmax


@triton.jit
def load_padded(row_ptr, scale_ptr, mask):
    """Bytes uint8 [BLOCK_T, 8, 64] and scale bytes [BLOCK_T, 8, 1]; group 7, and what is absent, reads as zeros."""
    group = tl.arange(0, 8)[None, :, None]
    there = mask[:, None, None] & (group < 7)
    byte = tl.load(
        row_ptr[:, None, None] + (group * 64 + tl.arange(0, 64)[None, None, :]), mask=there, other=0
    )
    return byte, tl.load(scale_ptr[:, None, None] + group, mask=there, other=0)


@triton.jit
def attend(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
    out_ptr, part,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OPTION: tl.constexpr,
):  # fmt: skip
    q_n = load_columns(q_ptr, head, heads, stride_head, 0, 512)
    # The queries' last 64 columns belong to the rotary block
    q_n = tl.where(tl.arange(0, 512)[None, :] < 448, q_n, 0.0)
    q_r = load_columns(q_ptr, head, heads, stride_head, 448, 64)
    acc_n = tl.zeros((BLOCK_H, 512), tl.float32)
    acc_r = tl.zeros((BLOCK_H, 64), tl.float32)
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    slot = fetch_slots(indices_ptr, first, last, length, BLOCK_T)
    next_slot = fetch_slots(indices_ptr, first + 1, last, length, BLOCK_T)
    row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
    raw_n, raw_s = load_padded(row, scale, valid)
    raw_r = load_rotary(row, valid)
    for tile in range(first, last):
        live = slot >= 0
        k_n, k_r = dequantise(raw_n, raw_s, BLOCK_T, 512), raw_r
        slot = next_slot
        row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
        raw_n, raw_s = load_padded(row, scale, valid)
        raw_r = load_rotary(row, valid)
        next_slot = fetch_slots(indices_ptr, tile + 2, last, length, BLOCK_T)

        scores = dot(q_n, tl.trans(k_n), tl.zeros((BLOCK_H, BLOCK_T), tl.float32))
        scores = dot(q_r, tl.trans(k_r), scores)
        scores = tl.where(live[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        p = to_bfloat16(weights)
        acc_n = dot(p, k_n, acc_n * rescale[:, None])
        acc_r = dot(p, k_r, acc_r * rescale[:, None])
    factor = reciprocal(total)
    column = tl.arange(0, 512)[None, :]
    pointer = out_ptr + head[:, None].to(tl.int64) * 512 + column
    value = cast(acc_n * factor[:, None], out_ptr.dtype.element_ty)
    tl.store(pointer, value, mask=(head[:, None] < heads) & (column < 448))
    store_columns(out_ptr, head, heads, acc_r, factor, 448, 64)
    return m, total
