"""Idea: scores by block-scaled FP8 products (`tl.dot_scaled`) on the cache's own bytes and UE8M0 scales.

sm_120 has a tensor-core instruction that multiplies e4m3 by e4m3 and applies one UE8M0 scale to each 32 columns
of either operand. The cache has one for each 64, so each is given twice, and keys need no dequantisation. Queries
are quantised: each 32 columns of a head to e4m3 with a scale of their own, once a program. The rotary columns are
bfloat16 in the cache and stay so, in a product of their own. Values are dequantised to bfloat16 as everywhere else:
`scaled_both` says why their scales cannot be handed over.

Q bfloat16 [BLOCK_H, 512], K and V uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64], sums float32.
Source: the OCP Microscaling (MX) specification, `tl.dot_scaled` in Triton's manual. Where the instruction does not
exist Triton multiplies the same numbers in bfloat16, so the accuracy class is the same everywhere.
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
from kernels.lab.variants._scaled import as_e4m3, dot_scaled, quantise, twice
from kernels.sparse_mla._dequantize import to_bfloat16
from kernels.sparse_mla._tile import dot, update_online_softmax


@triton.jit
def attend(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
    out_ptr, part,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OPTION: tl.constexpr,
):  # fmt: skip
    q_a, qs_a = quantise(load_columns(q_ptr, head, heads, stride_head, 0, 256).to(tl.float32), BLOCK_H, 256)
    q_b, qs_b = quantise(load_columns(q_ptr, head, heads, stride_head, 256, 128).to(tl.float32), BLOCK_H, 128)
    q_c, qs_c = quantise(load_columns(q_ptr, head, heads, stride_head, 384, 64).to(tl.float32), BLOCK_H, 64)
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
    next_s_a, next_s_b = load_scales(scale, valid, 0, 4), load_scales(scale, valid, 4, 2)
    next_s_c = load_scales(scale, valid, 6, 1)
    raw_r = load_rotary(row, valid)
    for tile in range(first, last):
        live = slot >= 0
        k_a, k_b, k_c, k_r = raw_a, raw_b, raw_c, raw_r
        s_a, s_b, s_c = next_s_a, next_s_b, next_s_c
        slot = next_slot
        row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
        raw_a, raw_b = load_bytes(row, valid, 0, 4), load_bytes(row, valid, 4, 2)
        raw_c, raw_r = load_bytes(row, valid, 6, 1), load_rotary(row, valid)
        next_s_a, next_s_b = load_scales(scale, valid, 0, 4), load_scales(scale, valid, 4, 2)
        next_s_c = load_scales(scale, valid, 6, 1)
        next_slot = fetch_slots(indices_ptr, tile + 2, last, length, BLOCK_T)

        scores = tl.zeros((BLOCK_H, BLOCK_T), tl.float32)
        e_a, e_b, e_c = as_e4m3(k_a, BLOCK_T, 256), as_e4m3(k_b, BLOCK_T, 128), as_e4m3(k_c, BLOCK_T, 64)
        scores = dot_scaled(q_a, qs_a, tl.trans(e_a), twice(s_a, BLOCK_T, 4), scores, BLOCK_H, 256, BLOCK_T)
        scores = dot_scaled(q_b, qs_b, tl.trans(e_b), twice(s_b, BLOCK_T, 2), scores, BLOCK_H, 128, BLOCK_T)
        scores = dot_scaled(q_c, qs_c, tl.trans(e_c), twice(s_c, BLOCK_T, 1), scores, BLOCK_H, 64, BLOCK_T)
        scores = dot(q_r, tl.trans(k_r), scores)
        scores = tl.where(live[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        p = to_bfloat16(weights)
        acc_a = dot(p, dequantise(k_a, s_a, BLOCK_T, 256), acc_a * rescale[:, None])
        acc_b = dot(p, dequantise(k_b, s_b, BLOCK_T, 128), acc_b * rescale[:, None])
        acc_c = dot(p, dequantise(k_c, s_c, BLOCK_T, 64), acc_c * rescale[:, None])
        acc_r = dot(p, k_r, acc_r * rescale[:, None])
    factor = reciprocal(total)
    store_columns(out_ptr, head, heads, acc_a, factor, 0, 256)
    store_columns(out_ptr, head, heads, acc_b, factor, 256, 128)
    store_columns(out_ptr, head, heads, acc_c, factor, 384, 64)
    store_columns(out_ptr, head, heads, acc_r, factor, 448, 64)
    return m, total
