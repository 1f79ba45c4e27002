"""Reference solutions of chapter 3."""

import numpy as np
import triton
import triton.language as tl


def grid(batch, heads, block_h, sm_count):
    blocks = batch * -(-heads // block_h)
    return blocks, max(0, sm_count - blocks)


def break_even(heads, block_h, sm_count):
    blocks_of_a_row = -(-heads // block_h)
    return -(-sm_count // blocks_of_a_row)


def online_softmax(scores, values, m, total, acc):
    present = scores > -np.inf
    if not present.any():
        return m, total, acc
    m_new = max(m, scores[present].max())
    weights = np.exp(scores[present] - m_new)
    rescale = np.exp(m - m_new)
    # A weight of 0 does not silence a NaN: only the rows that are present take part
    return m_new, total * rescale + weights.sum(), acc * rescale + weights @ values[present]


@triton.jit
def shared_scores(
    q_ptr, rows_ptr, slots_ptr, scores_ptr, count,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.arange(0, HEADS)
    column = tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + position, mask=position < count, other=-1)  # [BLOCK_T]
    valid = slot >= 0
    # [BLOCK_T, WIDTH], read once for all heads
    address = tl.where(valid, slot, 0).to(tl.int64)[:, None] * WIDTH + column[None, :]
    rows = tl.load(rows_ptr + address, mask=valid[:, None], other=0.0)
    q = tl.load(q_ptr + head[:, None] * WIDTH + column[None, :])  # [HEADS, WIDTH]
    scores = tl.dot(q, tl.trans(rows), input_precision="ieee")  # [HEADS, BLOCK_T]
    scores = tl.where(valid[None, :], scores, -float("inf"))
    tl.store(scores_ptr + head[:, None] * count + position[None, :], scores, mask=(position < count)[None, :])
