"""Idea: the 512 value columns split over two blocks, 256 each. Half the sums a block, and the scores twice.

What binds a tile on sm_120 is the accumulator: 512 float32 sums a head, for the whole loop. Two blocks that share
a row's values have half of them each, so a block can take twice the heads in the same registers. Both need every
column of K for the scores, so both gather and dequantise the whole row, and the scores are computed twice.

Part 0 keeps columns 0 to 255, part 1 the rest: 128 + 64 nope, 64 rotary.
Q bfloat16 [BLOCK_H, 512], K uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64], sums float32 [BLOCK_H, 256].
"""

import triton
import triton.language as tl

from kernels.lab.variants._frame import (
    dequantise,
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
def add_values(p, k_a, k_b, k_c, k_r, acc_a, acc_b, acc_c, rescale, SECOND: tl.constexpr):
    """Add weighted values to the sums of one part: [.., 256] for the first, [.., 128], [.., 64], [.., 64] for both."""
    factor = rescale[:, None]
    if SECOND:
        return dot(p, k_b, acc_a * factor), dot(p, k_c, acc_b * factor), dot(p, k_r, acc_c * factor)
    else:
        return dot(p, k_a, acc_a * factor), acc_b, acc_c


@triton.jit
def attend_part(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2, out_ptr,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """One part's loop and its columns. Sums of a part that are not there are one column wide, and never used."""
    q_a = load_columns(q_ptr, head, heads, stride_head, 0, 256)
    q_b = load_columns(q_ptr, head, heads, stride_head, 256, 128)
    q_c = load_columns(q_ptr, head, heads, stride_head, 384, 64)
    q_r = load_columns(q_ptr, head, heads, stride_head, 448, 64)
    acc_a = tl.zeros((BLOCK_H, 128 if SECOND else 256), tl.float32)
    acc_b = tl.zeros((BLOCK_H, 64 if SECOND else 1), tl.float32)
    acc_c = tl.zeros((BLOCK_H, 64 if SECOND else 1), tl.float32)
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
        k_a, k_b = dequantise(raw_a, s_a, BLOCK_T, 256), dequantise(raw_b, s_b, BLOCK_T, 128)
        k_c, k_r = dequantise(raw_c, s_c, BLOCK_T, 64), raw_r
        slot = next_slot
        row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
        raw_a, raw_b = load_bytes(row, valid, 0, 4), load_bytes(row, valid, 4, 2)
        raw_c, raw_r = load_bytes(row, valid, 6, 1), load_rotary(row, valid)
        s_a, s_b = load_scales(scale, valid, 0, 4), load_scales(scale, valid, 4, 2)
        s_c = load_scales(scale, valid, 6, 1)
        next_slot = fetch_slots(indices_ptr, tile + 2, last, length, BLOCK_T)

        scores = tl.zeros((BLOCK_H, BLOCK_T), tl.float32)
        scores = dot(q_a, tl.trans(k_a), scores)
        scores = dot(q_b, tl.trans(k_b), scores)
        scores = dot(q_c, tl.trans(k_c), scores)
        scores = dot(q_r, tl.trans(k_r), scores)
        scores = tl.where(live[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        acc_a, acc_b, acc_c = add_values(
            to_bfloat16(weights), k_a, k_b, k_c, k_r, acc_a, acc_b, acc_c, rescale, SECOND
        )
    factor = reciprocal(total)
    if SECOND:
        store_columns(out_ptr, head, heads, acc_a, factor, 256, 128)
        store_columns(out_ptr, head, heads, acc_b, factor, 384, 64)
        store_columns(out_ptr, head, heads, acc_c, factor, 448, 64)
    else:
        store_columns(out_ptr, head, heads, acc_a, factor, 0, 256)
    return m, total


@triton.jit
def attend(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
    out_ptr, part,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OPTION: tl.constexpr,
):  # fmt: skip
    if part == 0:
        m, total = attend_part(
            q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
            out_ptr, PAGE_SIZE, BLOCK_H, BLOCK_T, False,
        )  # fmt: skip
    else:
        m, total = attend_part(
            q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
            out_ptr, PAGE_SIZE, BLOCK_H, BLOCK_T, True,
        )  # fmt: skip
    return m, total
