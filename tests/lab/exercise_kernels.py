"""Wrong kernels that people write, each with words of the hint that it must get."""

import triton
import triton.language as tl
from triton.language import constexpr

from kernels.lab.exercises.solutions import chapter1


@triton.jit
def gather_unmasked(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + tl.maximum(slot, 0)[:, None] * WIDTH + column[None, :])
    tl.store(scores_ptr + position, tl.sum(rows * tl.load(q_ptr + column)[None, :], 1), mask=position < count)


@triton.jit
def gather_zero(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    tl.store(scores_ptr + position, tl.sum(rows * tl.load(q_ptr + column)[None, :], 1), mask=position < count)


@triton.jit
def gather_finite(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    scores = tl.where(slot >= 0, tl.sum(rows * tl.load(q_ptr + column)[None, :], 1), -1e30)
    tl.store(scores_ptr + position, scores, mask=position < count)


@triton.jit
def gather_past_end(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    scores = tl.where(slot >= 0, tl.sum(rows * tl.load(q_ptr + column)[None, :], 1), -float("inf"))
    tl.store(scores_ptr + position, scores)


@triton.jit
def gather_first_tile(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    scores = tl.where(slot >= 0, tl.sum(rows * tl.load(q_ptr + column)[None, :], 1), -float("inf"))
    tl.store(scores_ptr + position, scores, mask=position < count)


@triton.jit
def gather_whole_tiles(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, WIDTH)
    mask = position < count // BLOCK_T * BLOCK_T
    slot = tl.load(slots_ptr + position, mask=mask, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    scores = tl.where(slot >= 0, tl.sum(rows * tl.load(q_ptr + column)[None, :], 1), -float("inf"))
    tl.store(scores_ptr + position, scores, mask=mask)


@triton.jit
def other_arguments(q_ptr, rows_ptr):
    tl.store(q_ptr, 0.0)


@triton.jit
def odd_range(q_ptr, rows_ptr, slots_ptr, scores_ptr, count, WIDTH: constexpr, BLOCK_T: constexpr):
    position = tl.arange(0, BLOCK_T + 1)
    tl.store(scores_ptr + position, 0.0, mask=position < count)


@triton.jit
def loop_over_heads(
    q_ptr, rows_ptr, slots_ptr, scores_ptr, count,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    for head in range(HEADS):
        tl.store(scores_ptr + head * count + position, 0.0, mask=position < count)


@triton.jit
def shared_without_heads(
    q_ptr, rows_ptr, slots_ptr, scores_ptr, count,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head, column = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    q = tl.load(q_ptr + head[:, None] * 0 + column[None, :])
    scores = tl.where((slot >= 0)[None, :], tl.dot(q, tl.trans(rows), input_precision="ieee"), -float("inf"))
    tl.store(scores_ptr + head[:, None] * count + position[None, :], scores, mask=(position < count)[None, :])


@triton.jit
def shared_zero(
    q_ptr, rows_ptr, slots_ptr, scores_ptr, count,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head, column = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)
    rows = tl.load(rows_ptr + slot[:, None] * WIDTH + column[None, :], mask=(slot >= 0)[:, None], other=0.0)
    q = tl.load(q_ptr + head[:, None] * WIDTH + column[None, :])
    scores = tl.dot(q, tl.trans(rows), input_precision="ieee")
    tl.store(scores_ptr + head[:, None] * count + position[None, :], scores, mask=(position < count)[None, :])


FAULTS = (
    "natural_weights", "base_two_lse", "no_maximum", "mean", "reads_empty", "zero_for_absent", "empty_row",
    "one_less", "negative_infinity", "twice_normalised", "head_major", "only_maximum",
)  # fmt: skip


@triton.jit
def faulty_combine(
    partial_out_ptr,
    partial_lse_ptr,
    out_ptr,
    lse_ptr,
    heads,
    num_splits,
    BLOCK_S: constexpr,
    FAULT: constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    split, column = tl.arange(0, BLOCK_S), tl.arange(0, 512)
    source = (row * num_splits + split) * heads + head
    last = num_splits
    if FAULT == "head_major":
        source = (row * heads + head) * num_splits + split
    if FAULT == "one_less":
        last = tl.maximum(num_splits - 1, 1)
    absent = -float("inf")
    if FAULT == "zero_for_absent":
        absent = 0.0
    lse = tl.load(partial_lse_ptr + source, mask=split < last, other=absent)
    m = tl.max(lse, 0)
    reference = m
    if FAULT != "empty_row":
        reference = tl.where(m == -float("inf"), 0.0, m)
    if FAULT == "no_maximum":
        m = tl.where(m == -float("inf"), m, 0.0)
        reference = 0.0
    weight = tl.exp2(lse - reference)
    if FAULT == "natural_weights":
        weight = tl.exp(lse - reference)
    if FAULT == "mean":
        weight = (split < num_splits).to(tl.float32)
    mask = (split < last)[:, None]
    if FAULT != "reads_empty":
        mask = mask & (lse > -float("inf"))[:, None]
    partial = tl.load(partial_out_ptr + source[:, None] * 512 + column[None, :], mask=mask, other=0.0)
    total = tl.sum(weight, 0)
    empty = total == 0.0
    divisor = tl.where(empty, 1.0, total)
    out = tl.sum(partial * weight[:, None], 0) / divisor
    if FAULT == "twice_normalised":
        out = out / divisor
    natural = (m + tl.log2(divisor)) * 0.6931471805599453
    if FAULT == "base_two_lse":
        natural = m + tl.log2(divisor)
    if FAULT == "only_maximum":
        natural = m * 0.6931471805599453
    nothing = float("inf")
    if FAULT == "negative_infinity":
        nothing = -float("inf")
    tl.store(out_ptr + (row * heads + head) * 512 + column, out)
    tl.store(lse_ptr + row * heads + head, tl.where(empty, nothing, natural))


COMBINE_HINTS = {
    "natural_weights": "powers of e",
    "base_two_lse": "base 2",
    "no_maximum": "subtract the largest LSE",
    "mean": "plain mean",
    "reads_empty": "0 * NaN",
    "zero_for_absent": "absent LSE",
    "empty_row": "-inf minus -inf",
    "one_less": "last split is lost",
    "negative_infinity": "+inf here",
    "twice_normalised": "once",
    "head_major": "split is outside",
    "only_maximum": "sum of the weights is missing",
}

KERNELS = {
    "check_gather_scores": [
        (gather_unmasked, "followed"),
        (gather_zero, "masked load gives 0"),
        (gather_finite, "stand-in"),
        (gather_past_end, "mask"),
        (gather_first_tile, "Only the first tile"),
        (gather_whole_tiles, "remainder"),
        (other_arguments, None),
        (odd_range, "power of two"),
        (lambda *arguments: None, "@triton.jit"),
    ],
    "check_shared_scores": [
        (loop_over_heads, "two matrices"),
        (shared_without_heads, "head 0"),
        (shared_zero, "masked load gives 0"),
        (chapter1.gather_scores, "two matrices"),
    ],
}
