"""The second kernel of split-K: merge a row's partial outputs by their LSEs, apply the sink, write the result.

With partial outputs O_s, each normalised over its own candidates, and base-2 LSEs L_s, the whole row is
sum(2**(L_s - L) O_s) / (sum(2**(L_s - L)) + 2**(sink - L)) with L the largest L_s. A partial of LSE -inf has no
candidates: its output is read, because to know first would cost a second trip to memory, but it is not used.

One program a head, so that batch 1 is 64 programs. All loads of a chunk are on their way before the first is
used, 8 bytes each: wider ones would take more registers than the compiler is ready to give, and it would have them
follow one another.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import to_bfloat16


@triton.jit
def combine_kernel(
    partial_out_ptr, partial_lse_ptr, sink_ptr, out_ptr, lse_ptr,
    heads, num_splits,
    stride_out_row, stride_out_head, stride_lse_row,
    HAS_SINK: tl.constexpr, CHUNK_S: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, 512)
    if HAS_SINK:
        sink = tl.load(sink_ptr + head) * 1.4426950408889634
    m = -float("inf")
    total = 0.0
    acc = tl.zeros((512,), tl.float32)
    for start in range(0, num_splits, CHUNK_S):
        lses = ()
        outs = ()
        for i in tl.static_range(CHUNK_S):
            split = start + i
            partial = (row * num_splits + split) * heads + head
            lses += (tl.load(partial_lse_ptr + partial, mask=split < num_splits, other=-float("inf")),)
            outs += (tl.load(partial_out_ptr + partial * 512 + column, mask=split < num_splits, other=0.0),)
        m_new = m
        for i in tl.static_range(CHUNK_S):
            m_new = tl.maximum(m_new, lses[i])
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)
        rescale = tl.exp2(m - reference)
        m = m_new
        acc *= rescale
        total *= rescale
        for i in tl.static_range(CHUNK_S):
            # By selection: an empty partial's output may be anything, and 0 * NaN is NaN
            present = lses[i] > -float("inf")
            weight = tl.exp2(lses[i] - reference)
            acc += tl.where(present, outs[i].to(tl.float32), 0.0) * weight
            total += weight

    denominator = total
    if HAS_SINK:
        denominator += tl.exp2(sink - tl.where(m == -float("inf"), 0.0, m))
    empty = total == 0.0
    acc = tl.where(empty, 0.0, acc / tl.where(empty, 1.0, denominator))
    tl.store(out_ptr + row * stride_out_row + head * stride_out_head + column, to_bfloat16(acc))
    lse = (m + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    tl.store(lse_ptr + row * stride_lse_row + head, tl.where(empty, float("inf"), lse))
