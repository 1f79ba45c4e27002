"""Rung 3: the rewrite. One program gathers a tile of tokens once and uses it for a whole head group.

Grid (B, head groups). Both products run on the tensor cores (`tl.dot`), and a row's tokens are read and
dequantised once a head group instead of once a head. It ends at the row's own length. What is left over is in
the grid: at batch 1 with two head groups, two blocks work and every other multiprocessor idles (chapter 3).
"""

import triton
import triton.language as tl

from kernels.sparse_mla._tile import attend, load_length, load_query, normalise, sink_weight, store_blocks


@triton.jit
def mma_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr,
    HAS_LENGTH: tl.constexpr, HAS_EXTRA: tl.constexpr, HAS_EXTRA_LENGTH: tl.constexpr, HAS_SINK: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    q_a, q_b, q_c, q_r = load_query(q_ptr + row * stride_q_row, head, heads, stride_q_head)
    acc_a = tl.zeros((BLOCK_H, 256), tl.float32)
    acc_b = tl.zeros((BLOCK_H, 128), tl.float32)
    acc_c = tl.zeros((BLOCK_H, 64), tl.float32)
    acc_r = tl.zeros((BLOCK_H, 64), tl.float32)
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)

    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    acc_a, acc_b, acc_c, acc_r, m, total = attend(
        q_a, q_b, q_c, q_r, acc_a, acc_b, acc_c, acc_r, m, total,
        kv_ptr, indices_ptr + row * stride_indices, length, stride_page, 0, tl.cdiv(length, BLOCK_T), scale_log2,
        PAGE_SIZE, ALIGNED, BLOCK_H, BLOCK_T,
    )  # fmt: skip
    if HAS_EXTRA:
        length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
        acc_a, acc_b, acc_c, acc_r, m, total = attend(
            q_a, q_b, q_c, q_r, acc_a, acc_b, acc_c, acc_r, m, total,
            extra_kv_ptr, extra_indices_ptr + row * stride_extra_indices, length, stride_extra_page,
            0, tl.cdiv(length, BLOCK_T), scale_log2, EXTRA_PAGE_SIZE, ALIGNED, BLOCK_H, BLOCK_T,
        )  # fmt: skip

    factor, lse = normalise(m, total, sink_weight(sink_ptr, head, heads, m, HAS_SINK))
    store_blocks(out_ptr + row * stride_out_row, head, heads, stride_out_head, acc_a, acc_b, acc_c, acc_r, factor)
    tl.store(lse_ptr + row * stride_lse_row + head, lse, mask=head < heads)
