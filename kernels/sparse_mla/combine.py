"""The second kernel of split-K: merge a row's partial outputs by their LSEs, apply the sink, write the result.

With partial outputs O_s, each normalised over its own candidates, and base-2 LSEs L_s, the whole row is
sum(2**(L_s - L) O_s) / (sum(2**(L_s - L)) + 2**(sink - L)) with L the largest L_s. A partial of LSE -inf has no
candidates: its output was never written and is not read. One program a head, so that batch 1 is 64 programs.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import to_bfloat16


@triton.jit
def combine_kernel(
    partial_out_ptr, partial_lse_ptr, sink_ptr, out_ptr, lse_ptr,
    heads, num_splits,
    stride_out_row, stride_out_head, stride_lse_row,
    HAS_SINK: tl.constexpr, BLOCK_S: tl.constexpr, CHUNK_S: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, BLOCK_S)
    first = row * num_splits
    # [BLOCK_S]
    partial_lse = tl.load(
        partial_lse_ptr + (first + split) * heads + head, mask=split < num_splits, other=-float("inf")
    )
    m = tl.max(partial_lse, 0)
    reference = tl.where(m == -float("inf"), 0.0, m)
    total = tl.sum(tl.exp2(partial_lse - reference), 0)

    # [CHUNK_S, 512] on two warps: a thread keeps its eight columns through all splits, so that the sum needs no
    # exchange, and the loads of a chunk are in flight together
    column = tl.arange(0, 512)
    acc = tl.zeros((512,), tl.float32)
    for start in range(0, num_splits, CHUNK_S):
        source = start + tl.arange(0, CHUNK_S)
        lse = tl.load(
            partial_lse_ptr + (first + source) * heads + head, mask=source < num_splits, other=-float("inf")
        )
        rows = ((first + source) * heads + head) * 512
        present = (lse > -float("inf"))[:, None]
        partial = tl.load(partial_out_ptr + rows[:, None] + column[None, :], mask=present, other=0.0)
        acc += tl.sum(partial.to(tl.float32) * tl.exp2(lse - reference)[:, None], 0)

    denominator = total
    if HAS_SINK:
        denominator += tl.exp2(tl.load(sink_ptr + head) * 1.4426950408889634 - reference)
    empty = total == 0.0
    acc = tl.where(empty, 0.0, acc / tl.where(empty, 1.0, denominator))
    tl.store(out_ptr + row * stride_out_row + head * stride_out_head + column, to_bfloat16(acc))
    lse = (m + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    tl.store(lse_ptr + row * stride_lse_row + head, tl.where(empty, float("inf"), lse))
