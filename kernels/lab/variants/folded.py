"""Idea: scales folded into scores and weights instead of into K. OPTION: "bfloat16" or "float16" for K and V.

A group's scale is one number for 64 columns of a token. Multiply the group's part of a score by it, and the
token's weight by it before the group's values are added: then the bytes themselves, widened and unscaled, are the
operands. That saves a multiply for each number of a tile and costs one for each head and token, seven times, and
seven products that cannot share a sum.

float16 holds every e4m3 number, and one instruction widens two. But a scale is anything from 2**-127 to 2**127,
which float16 cannot hold, so this is the only place for it there: in float32 scores, and in weights over the
tile's largest scale (`reference`), which a running accumulator follows as it follows the running maximum. A weight
below 2**-24 of it is lost. Queries go to float16 too: exact for magnitudes from 2**-14 to 65,504.

Q bfloat16 [BLOCK_H, 512], K and V uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64], sums float32.
"""

import triton
import triton.language as tl

from kernels.lab.variants._frame import (
    cast,
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
    unpack_bfloat16,
    zero_groups,
)
from kernels.sparse_mla._tile import dot, update_online_softmax


@triton.jit
def widen(byte, HALF: tl.constexpr):
    """e4m3 bytes as float16 or bfloat16 of the same value."""
    if HALF:
        return byte.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        return unpack_bfloat16(byte)


@triton.jit
def widen_groups(byte, HALF: tl.constexpr):
    """Seven groups of bytes, each widened."""
    return (
        widen(byte[0], HALF), widen(byte[1], HALF), widen(byte[2], HALF), widen(byte[3], HALF),
        widen(byte[4], HALF), widen(byte[5], HALF), widen(byte[6], HALF),
    )  # fmt: skip


@triton.jit
def to_factors(byte):
    """Seven groups of UE8M0 bytes as float32 [BLOCK_T]."""
    return (
        power_of_two(byte[0]), power_of_two(byte[1]), power_of_two(byte[2]), power_of_two(byte[3]),
        power_of_two(byte[4]), power_of_two(byte[5]), power_of_two(byte[6]),
    )  # fmt: skip


@triton.jit
def score(q, k, s, scores):
    """Add a group's part of the scores: its product, then its scales."""
    return scores + dot(q, tl.trans(k), tl.zeros_like(scores)) * s[None, :]


@triton.jit
def add_values(weights, rescale, k, s, acc):
    """Add a group's weighted values: scales into the weights, then the product."""
    return dot(cast(weights * s[None, :], k.dtype), k, acc * rescale[:, None])


@triton.jit
def largest(s):
    """The largest of seven groups of factors, a float32 scalar."""
    most = tl.maximum(tl.maximum(tl.maximum(s[0], s[1]), tl.maximum(s[2], s[3])), tl.maximum(s[4], s[5]))
    return tl.max(tl.maximum(most, s[6]), 0)


@triton.jit
def attend(
    q_ptr, head, heads, stride_head, cache_ptr, indices_ptr, length, page_stride, first, last, scale_log2,
    out_ptr, part,
    PAGE_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OPTION: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = OPTION == "float16"
    DTYPE: tl.constexpr = tl.float16 if HALF else tl.bfloat16
    q = load_query_groups(q_ptr, head, heads, stride_head)
    q_0, q_1, q_2, q_3 = q[0].to(DTYPE), q[1].to(DTYPE), q[2].to(DTYPE), q[3].to(DTYPE)
    q_4, q_5, q_6 = q[4].to(DTYPE), q[5].to(DTYPE), q[6].to(DTYPE)
    q_r = load_columns(q_ptr, head, heads, stride_head, 448, 64)
    acc = zero_groups(BLOCK_H)
    acc_r = tl.zeros((BLOCK_H, 64), tl.float32)
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    reference = 2.0**-126
    slot = fetch_slots(indices_ptr, first, last, length, BLOCK_T)
    next_slot = fetch_slots(indices_ptr, first + 1, last, length, BLOCK_T)
    row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
    raw, raw_r, raw_s = load_groups(row, valid), load_rotary(row, valid), load_group_scales(scale, valid)
    for tile in range(first, last):
        live = slot >= 0
        k, k_r, s = widen_groups(raw, HALF), raw_r, to_factors(raw_s)
        slot = next_slot
        row, scale, valid = rows_of(slot, cache_ptr, page_stride, PAGE_SIZE)
        raw, raw_r, raw_s = load_groups(row, valid), load_rotary(row, valid), load_group_scales(scale, valid)
        next_slot = fetch_slots(indices_ptr, tile + 2, last, length, BLOCK_T)

        scores = dot(q_r, tl.trans(k_r), tl.zeros((BLOCK_H, BLOCK_T), tl.float32))
        scores = score(q_0, k[0], s[0], scores)
        scores = score(q_1, k[1], s[1], scores)
        scores = score(q_2, k[2], s[2], scores)
        scores = score(q_3, k[3], s[3], scores)
        scores = score(q_4, k[4], s[4], scores)
        scores = score(q_5, k[5], s[5], scores)
        scores = score(q_6, k[6], s[6], scores)
        scores = tl.where(live[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        small, keep = weights, rescale
        if HALF:
            most = tl.maximum(reference, largest(s))
            small, keep = weights * (1.0 / most), rescale * (reference / most)
            reference = most
        acc = (
            add_values(small, keep, k[0], s[0], acc[0]),
            add_values(small, keep, k[1], s[1], acc[1]),
            add_values(small, keep, k[2], s[2], acc[2]),
            add_values(small, keep, k[3], s[3], acc[3]),
            add_values(small, keep, k[4], s[4], acc[4]),
            add_values(small, keep, k[5], s[5], acc[5]),
            add_values(small, keep, k[6], s[6], acc[6]),
        )
        acc_r = dot(cast(weights, tl.bfloat16), k_r, acc_r * rescale[:, None])
    factor = reciprocal(total)
    nope_factor = factor
    if HALF:
        nope_factor = factor * reference
    store_groups(out_ptr, head, heads, acc, nope_factor)
    store_columns(out_ptr, head, heads, acc_r, factor, 448, 64)
    return m, total
