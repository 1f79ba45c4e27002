"""Rung 3: the rewrite. One program gathers a tile of tokens once and uses it for a whole head group.

Grid (B, head groups). Both products run on the tensor cores (`tl.dot`), and a row's tokens are read and
dequantised once a head group instead of once a head. It ends at the row's own length. What is left over is in
the grid: at batch 1 with two head groups, two blocks work and every other multiprocessor idles (chapter 3).
"""

import triton
import triton.language as tl

from kernels.sparse_mla._tile import attend, load_length, normalise, sink_weight, store_blocks


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
    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    tiles = tl.cdiv(length, BLOCK_T)
    extra_length = 0
    if HAS_EXTRA:
        extra_length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
    acc_a, acc_b, acc_c, acc_r, m, total = attend(
        q_ptr + row * stride_q_row, head, heads, stride_q_head,
        kv_ptr, indices_ptr + row * stride_indices, length, stride_page,
        extra_kv_ptr, extra_indices_ptr + row * stride_extra_indices, extra_length, stride_extra_page,
        0, tiles + tl.cdiv(extra_length, BLOCK_T), tiles, scale_log2,
        PAGE_SIZE, EXTRA_PAGE_SIZE, ALIGNED, HAS_EXTRA, BLOCK_H, BLOCK_T,
    )  # fmt: skip

    factor, lse = normalise(m, total, sink_weight(sink_ptr, head, heads, m, HAS_SINK))
    store_blocks(
        out_ptr + row * stride_out_row, head, heads, stride_out_head, acc_a, acc_b, acc_c, acc_r, factor
    )
    tl.store(lse_ptr + row * stride_lse_row + head, lse, mask=head < heads)
