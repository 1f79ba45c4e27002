"""Reference solutions of chapter 5."""

import torch
import triton
import triton.language as tl


def merge(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    reference = torch.where(m == -torch.inf, 0.0, m)
    a = torch.exp(lse_a - reference)
    b = torch.exp(lse_b - reference)
    # An empty side was never written: it is left out, because 0 * NaN is NaN
    sum_a = torch.where(a[:, None] > 0, out_a * a[:, None], 0.0)
    sum_b = torch.where(b[:, None] > 0, out_b * b[:, None], 0.0)
    total = a + b
    out = (sum_a + sum_b) / torch.where(total > 0, total, 1.0)[:, None]
    return out, m + torch.log(total)


def sink(out, lse, sink):
    factor = torch.where(lse == -torch.inf, 0.0, torch.sigmoid(lse - sink))
    return out * factor[:, None]


def scratch_bytes(batch, heads, num_splits, value_bytes):
    partials = batch * heads * num_splits
    return 2 * partials * (512 * value_bytes + 4)


@triton.jit
def combine(
    partial_out_ptr, partial_lse_ptr, out_ptr, lse_ptr, heads, num_splits, BLOCK_S: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.arange(0, BLOCK_S)
    column = tl.arange(0, 512)
    source = (row * num_splits + split) * heads + head  # [BLOCK_S]
    lse = tl.load(partial_lse_ptr + source, mask=split < num_splits, other=-float("inf"))
    m = tl.max(lse, 0)
    reference = tl.where(m == -float("inf"), 0.0, m)
    weight = tl.exp2(lse - reference)
    # [BLOCK_S, 512]; an empty partial was never written, so it is not read
    partial = tl.load(
        partial_out_ptr + source[:, None] * 512 + column[None, :],
        mask=(lse > -float("inf"))[:, None],
        other=0.0,
    )
    total = tl.sum(weight, 0)
    empty = total == 0.0
    out = tl.sum(partial * weight[:, None], 0) / tl.where(empty, 1.0, total)
    natural = (m + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    tl.store(out_ptr + (row * heads + head) * 512 + column, out)
    tl.store(lse_ptr + row * heads + head, tl.where(empty, float("inf"), natural))
