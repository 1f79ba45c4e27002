"""Rung 4: split-K. The candidates of a row are shared out over several programs, so that small batches fill the GPU.

Grid (B, head groups, splits). A program takes its share of the row's live tiles, of both caches as if they
were one list, and leaves a normalised partial output and its base-2 LSE in scratch; `combine` merges them. The
share follows the row's length on the device, so the grid stays the same in a captured graph while lengths
change. A split without tiles leaves zeros and an LSE of -inf.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._tile import attend, load_length, store_blocks


@triton.jit
def split_k_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    partial_out_ptr, partial_lse_ptr,
    heads, topk, extra_topk, scale_log2,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr,
    HAS_LENGTH: tl.constexpr, HAS_EXTRA: tl.constexpr, HAS_EXTRA_LENGTH: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    partial = (row * num_splits + split) * heads
    partial_lse_row = partial_lse_ptr + partial + head

    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    tiles = tl.cdiv(length, BLOCK_T)
    extra_length = 0
    if HAS_EXTRA:
        extra_length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
    all_tiles = tiles + tl.cdiv(extra_length, BLOCK_T)
    first = split * all_tiles // num_splits
    last = (split + 1) * all_tiles // num_splits
    # A split without tiles reads no query: to it, there are no heads
    live_heads = tl.where(first < last, heads, 0)

    acc_a, acc_b, acc_c, acc_r, m, total = attend(
        q_ptr + row * stride_q_row, head, live_heads, stride_q_head,
        kv_ptr, indices_ptr + row * stride_indices, length, stride_page,
        extra_kv_ptr, extra_indices_ptr + row * stride_extra_indices, extra_length, stride_extra_page,
        first, last, tiles, scale_log2, PAGE_SIZE, EXTRA_PAGE_SIZE, ALIGNED, HAS_EXTRA, BLOCK_H, BLOCK_T,
    )  # fmt: skip
    empty = total == 0.0
    factor = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total))
    store_blocks(partial_out_ptr + partial * 512, head, heads, 512, acc_a, acc_b, acc_c, acc_r, factor)
    tl.store(partial_lse_row, m + tl.log2(total), mask=head < heads)
