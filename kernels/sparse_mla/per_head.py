"""The frame of rungs 1 and 2: grid (B, H), one head's query against every candidate of its row."""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import to_bfloat16
from kernels.sparse_mla._tile import load_length
from kernels.sparse_mla.serial import attend_serial
from kernels.sparse_mla.simt import attend_tiles


@triton.jit
def load_query_row(q_row_ptr):
    """One head's query in float32: nope [512] (448 used), rope [64]."""
    column = tl.arange(0, 512)
    q_nope = tl.load(q_row_ptr + column, mask=column < 448, other=0.0).to(tl.float32)
    return q_nope, tl.load(q_row_ptr + 448 + tl.arange(0, 64)).to(tl.float32)


@triton.jit
def store_row(out_ptr, lse_ptr, sink_ptr, head, acc_nope, acc_rope, m, total, HAS_SINK: tl.constexpr):
    """Normalise one head and store its output row and LSE under the contract for sinks and empty rows."""
    empty = total == 0.0
    denominator = total
    if HAS_SINK:
        sink = tl.load(sink_ptr + head) * 1.4426950408889634
        denominator += tl.exp2(sink - tl.where(m == -float("inf"), 0.0, m))
    factor = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, denominator))
    column = tl.arange(0, 512)
    tl.store(out_ptr + column, to_bfloat16(acc_nope * factor), mask=column < 448)
    tl.store(out_ptr + 448 + tl.arange(0, 64), to_bfloat16(acc_rope * factor))
    lse = (m + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    tl.store(lse_ptr, tl.where(empty, float("inf"), lse))


@triton.jit
def per_head_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    topk, extra_topk, scale_log2,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr,
    HAS_LENGTH: tl.constexpr, HAS_EXTRA: tl.constexpr, HAS_EXTRA_LENGTH: tl.constexpr, HAS_SINK: tl.constexpr,
    SERIAL: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    q_nope, q_rope = load_query_row(q_ptr + row * stride_q_row + head * stride_q_head)
    acc_nope = tl.zeros((512,), tl.float32)
    acc_rope = tl.zeros((64,), tl.float32)
    m = -float("inf")
    total = 0.0
    for source in tl.static_range(2 if HAS_EXTRA else 1):
        if source == 0:
            cache_ptr, page_stride, width = kv_ptr, stride_page, topk
            row_indices_ptr = indices_ptr + row * stride_indices
            length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
        else:
            cache_ptr, page_stride, width = extra_kv_ptr, stride_extra_page, extra_topk
            row_indices_ptr = extra_indices_ptr + row * stride_extra_indices
            length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
        if SERIAL:
            acc_nope, acc_rope, m, total = attend_serial(
                q_nope, q_rope, acc_nope, acc_rope, m, total, cache_ptr, row_indices_ptr, length,
                page_stride, scale_log2, PAGE_SIZE if source == 0 else EXTRA_PAGE_SIZE, ALIGNED,
            )  # fmt: skip
        else:
            acc_nope, acc_rope, m, total = attend_tiles(
                q_nope, q_rope, acc_nope, acc_rope, m, total, cache_ptr, row_indices_ptr, length, width,
                page_stride, scale_log2, PAGE_SIZE if source == 0 else EXTRA_PAGE_SIZE, ALIGNED, BLOCK_T,
            )  # fmt: skip
    store_row(
        out_ptr + row * stride_out_row + head * stride_out_head,
        lse_ptr + row * stride_lse_row + head,
        sink_ptr,
        head,
        acc_nope,
        acc_rope,
        m,
        total,
        HAS_SINK,
    )
