"""Idea: both products block-scaled FP8. The scores as in `scaled_scores`; then weights in e4m3, too.

The second product sums over tokens, so its instruction takes one scale for each 32 *tokens* of a column. The
cache's scales belong to a token's 64 columns: they lie along the wrong axis and cannot be handed over. So a token's
scale moves into its weight, which gives seven sets of weights, one for each group of columns, and each set is
quantised for itself: e4m3 with one UE8M0 scale for a head's 32 tokens. Values then are the cache's bytes as they lie.

Q bfloat16 [BLOCK_H, 512], K and V uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64], sums float32; BLOCK_T >= 32.
Source: as `scaled_scores`; FlashInfer's sm_120 kernel multiplies in FP8 as well.
"""

import triton
import triton.language as tl

from kernels.lab.variants._frame import (
    fetch_slots,
    load_columns,
    load_group_scales,
    load_groups,
    load_query_groups,
    load_rotary,
    power_of_two,
    reciprocal,
    rows_of,
    store_columns,
    store_groups,
    zero_groups,
)
from kernels.lab.variants._scaled import as_e4m3, dot_scaled, quantise, twice
from kernels.sparse_mla._dequantize import to_bfloat16
from kernels.sparse_mla._tile import dot, update_online_softmax


@triton.jit
def score(q, k, s, scores, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr):
    """Add a group's part of the scores; q: e4m3 and scales, k: bytes [BLOCK_T, 64], s: scale bytes [BLOCK_T]."""
    factor = twice(tl.reshape(s, (BLOCK_T, 1, 1)), BLOCK_T, 1)
    return dot_scaled(q[0], q[1], tl.trans(as_e4m3(k, BLOCK_T, 64)), factor, scores, BLOCK_H, 64, BLOCK_T)


@triton.jit
def add_values(weights, rescale, k, s, acc, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr):
    """Add a group's weighted values: scales into the weights, these to e4m3, bytes [BLOCK_T, 64] as they are."""
    p, p_scale = quantise(weights * power_of_two(s)[None, :], BLOCK_H, BLOCK_T)
    one = tl.full((64, BLOCK_T // 32), 127, tl.uint8)
    return dot_scaled(p, p_scale, as_e4m3(k, BLOCK_T, 64), one, acc * rescale[:, None], BLOCK_H, BLOCK_T, 64)


@triton.jit
def attend(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
    out_ptr, part,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OPTION: tl.constexpr,
):  # fmt: skip
    q = load_query_groups(q_ptr, head, heads, stride_head)
    q_0, q_1 = quantise(q[0].to(tl.float32), BLOCK_H, 64), quantise(q[1].to(tl.float32), BLOCK_H, 64)
    q_2, q_3 = quantise(q[2].to(tl.float32), BLOCK_H, 64), quantise(q[3].to(tl.float32), BLOCK_H, 64)
    q_4, q_5 = quantise(q[4].to(tl.float32), BLOCK_H, 64), quantise(q[5].to(tl.float32), BLOCK_H, 64)
    q_6 = quantise(q[6].to(tl.float32), BLOCK_H, 64)
    q_r = load_columns(q_ptr, head, heads, stride_head, 448, 64)
    acc = zero_groups(BLOCK_H)
    acc_r = tl.zeros((BLOCK_H, 64), tl.float32)
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    slot = fetch_slots(indices_ptr, first, last, length, BLOCK_T)
    next_slot = fetch_slots(indices_ptr, first + 1, last, length, BLOCK_T)
    row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
    raw, raw_r, raw_s = load_groups(row, valid), load_rotary(row, valid), load_group_scales(scale, valid)
    for tile in range(first, last):
        live = slot >= 0
        k, k_r, s = raw, raw_r, raw_s
        slot = next_slot
        row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
        raw, raw_r, raw_s = load_groups(row, valid), load_rotary(row, valid), load_group_scales(scale, valid)
        next_slot = fetch_slots(indices_ptr, tile + 2, last, length, BLOCK_T)

        scores = dot(q_r, tl.trans(k_r), tl.zeros((BLOCK_H, BLOCK_T), tl.float32))
        scores = score(q_0, k[0], s[0], scores, BLOCK_H, BLOCK_T)
        scores = score(q_1, k[1], s[1], scores, BLOCK_H, BLOCK_T)
        scores = score(q_2, k[2], s[2], scores, BLOCK_H, BLOCK_T)
        scores = score(q_3, k[3], s[3], scores, BLOCK_H, BLOCK_T)
        scores = score(q_4, k[4], s[4], scores, BLOCK_H, BLOCK_T)
        scores = score(q_5, k[5], s[5], scores, BLOCK_H, BLOCK_T)
        scores = score(q_6, k[6], s[6], scores, BLOCK_H, BLOCK_T)
        scores = tl.where(live[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        acc = (
            add_values(weights, rescale, k[0], s[0], acc[0], BLOCK_H, BLOCK_T),
            add_values(weights, rescale, k[1], s[1], acc[1], BLOCK_H, BLOCK_T),
            add_values(weights, rescale, k[2], s[2], acc[2], BLOCK_H, BLOCK_T),
            add_values(weights, rescale, k[3], s[3], acc[3], BLOCK_H, BLOCK_T),
            add_values(weights, rescale, k[4], s[4], acc[4], BLOCK_H, BLOCK_T),
            add_values(weights, rescale, k[5], s[5], acc[5], BLOCK_H, BLOCK_T),
            add_values(weights, rescale, k[6], s[6], acc[6], BLOCK_H, BLOCK_T),
        )
        acc_r = dot(to_bfloat16(weights), k_r, acc_r * rescale[:, None])
    factor = reciprocal(total)
    store_groups(out_ptr, head, heads, acc, factor)
    store_columns(out_ptr, head, heads, acc_r, factor, 448, 64)
    return m, total
