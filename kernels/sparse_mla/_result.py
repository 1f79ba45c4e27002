"""What a block writes at its end, in Gluon: a row's result, or a partial result for the combine kernel."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._special import inverse_of, log2_of


@gluon.jit
def load_sink(sink_ptr, head, heads, HAS_SINK: gl.constexpr):
    """The heads' sinks in base 2; without sinks, nothing that is read."""
    sink = 0.0
    if HAS_SINK:
        sink = gl.load(sink_ptr + head, mask=head < heads, other=-float("inf")) * 1.4426950408889634
    return sink


@gluon.jit
def weigh(m, total, sink, HAS_SINK: gl.constexpr, FINAL: gl.constexpr):
    """The LSE that a block writes, and what its accumulators are to be multiplied by.

    Without candidates the factor is 0, and the LSE +inf in a result and -inf (base 2) in a partial result.
    """
    none = total == 0.0
    denominator = gl.where(none, 1.0, total)
    lse = m + log2_of(denominator)
    if FINAL:
        if HAS_SINK:
            denominator += gl.exp2(sink - gl.where(m == -float("inf"), 0.0, m))
        lse = gl.where(none, float("inf"), lse * 0.6931471805599453)
    else:
        lse = gl.where(none, -float("inf"), lse)
    return lse, gl.where(none, 0.0, inverse_of(denominator))


@gluon.jit
def statistics(m, total, sink_ptr, head, heads, HAS_SINK: gl.constexpr, FINAL: gl.constexpr):
    """`weigh`, with the sinks loaded where they are needed."""
    return weigh(m, total, load_sink(sink_ptr, head, heads, HAS_SINK and FINAL), HAS_SINK, FINAL)


@gluon.jit
def destination(
    out_ptr, lse_ptr, row, split, num_splits, heads, stride_out_row, stride_out_head, stride_lse_row,
    FINAL: gl.constexpr,
):  # fmt: skip
    """Where a block writes: its row's output, the stride from head to head, its row's LSEs."""
    if FINAL:
        out_row_ptr = out_ptr + row * stride_out_row
        stride_head = stride_out_head
        lse_row_ptr = lse_ptr + row * stride_lse_row
    else:
        partial = row * num_splits + split
        out_row_ptr = out_ptr + partial * heads * 512
        stride_head = 512
        lse_row_ptr = lse_ptr + partial * heads
    return out_row_ptr, stride_head, lse_row_ptr


@gluon.jit
def write_result(
    q_smem, m, total, accs, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
    stride_out_row, stride_out_head, stride_lse_row,
    HAS_SINK: gl.constexpr, BLOCK_H: gl.constexpr, FINAL: gl.constexpr, LM: gl.constexpr, LA: gl.constexpr,
):  # fmt: skip
    """Write a block's result, or its partial result, from maxima, sums and the accumulator's column blocks.

    A split without tiles leaves zeros and an LSE of -inf.
    """
    BLOCKS: gl.constexpr = len(accs)
    WIDTH: gl.constexpr = 512 // BLOCKS
    head = head_first + gl.arange(0, BLOCK_H, layout=LM)
    lse, factor = statistics(m, total, sink_ptr, head, heads, HAS_SINK, FINAL)
    if FINAL:
        partial = row
        lse_row_ptr = lse_ptr + row * stride_lse_row
    else:
        partial = row * num_splits + split
        lse_row_ptr = lse_ptr + partial * heads
    gl.store(lse_row_ptr + head, lse, mask=head < heads)
    factor = gl.convert_layout(factor, LA)[:, None]
    if out_ptr.dtype.element_ty == gl.float32:
        a_head = head_first + gl.arange(0, BLOCK_H, layout=LA)
        a_row_ptr = out_ptr + (partial * heads + a_head.to(gl.int64)[:, None]) * 512
        a_column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LA.parent))[None, :]
        for b in gl.static_range(BLOCKS):
            gl.store(a_row_ptr + b * WIDTH + a_column, accs[b] * factor, mask=(a_head < heads)[:, None])
    else:
        # The queries' buffer is free: bring the result through it into rows that are stored 16 bytes at a time
        for b in gl.static_range(BLOCKS):
            q_smem.slice(b * WIDTH, WIDTH, dim=1).store((accs[b] * factor).to(gl.bfloat16))
        O2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps(), 1], [1, 0])
        o_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, O2))
        if FINAL:
            o_row_ptr = out_ptr + row * stride_out_row + o_head.to(gl.int64)[:, None] * stride_out_head
        else:
            o_row_ptr = out_ptr + (partial * heads + o_head.to(gl.int64)[:, None]) * 512
        o_column = gl.arange(0, 512, layout=gl.SliceLayout(0, O2))[None, :]
        gl.store(o_row_ptr + o_column, q_smem.load(O2), mask=(o_head < heads)[:, None])
