"""A candidate for rung `staged` on sm_90: a block whose share of a row fits into shared memory takes it in one pass.

`staged_kernel` goes tile by tile, and each tile is dequantised, scored, folded in and multiplied in turn. With few
candidates a block, that is two or three turns, each a chain of steps. Here the block asks for the bytes of its whole
share at once, dequantises it in chunks of 32 candidates, and lets the tensor cores score a chunk while the next one is
dequantised. Then there is one softmax for all, and the products of the output follow one another without a wait.

While the words are on their way there is no accumulator yet, so they can have its registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.sparse_mla.staged import (
    fetch_tile,
    fill_tables,
    load_slots,
    locate,
    packed,
    release_successor,
    share_of_row,
    store_tile,
    wait_for_predecessor,
    write_result,
)


@gluon.jit
def attend_chunks(
    q_smem, k_chunks, p_chunks, words, scales, biases, acc, m, total, scale_log2,
    START: gl.constexpr, COUNT: gl.constexpr, BLOCK_T: gl.constexpr, BLOCK_H: gl.constexpr,
    S2: gl.constexpr, A2: gl.constexpr,
):  # fmt: skip
    """Fold chunks `START : START + COUNT` into accumulator, maximum (base 2) and sum of weights."""
    zeros = gl.zeros([BLOCK_H, BLOCK_T], gl.float32, layout=S2)
    pending = ()
    present = ()
    for c in gl.static_range(COUNT):
        store_tile(k_chunks[c], words[START + c][0], words[START + c][1], scales, START + c, BLOCK_T)
        present += (biases.index(START + c).load(gl.SliceLayout(0, S2)),)
        fence_async_shared()
        pending += (warpgroup_mma(q_smem, k_chunks[c].permute((1, 0)), zeros, use_acc=False, is_async=True),)
    if COUNT == 1:
        products = (warpgroup_mma_wait(0, deps=pending),)
    else:
        products = warpgroup_mma_wait(0, deps=pending)
    # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
    scores = ()
    for c in gl.static_range(COUNT):
        scores += (gl.where((present[c] == 0.0)[None, :], products[c] * scale_log2, -float("inf")),)
    highest = scores[0]
    for c in gl.static_range(1, COUNT):
        highest = gl.maximum(highest, scores[c])
    m_new = gl.maximum(m, gl.max(highest, 1))
    reference = gl.where(m_new == -float("inf"), 0.0, m_new)
    summed = zeros
    for c in gl.static_range(COUNT):
        weights = gl.exp2(scores[c] - reference[:, None])
        summed += weights
        p_chunks[c].store(weights.to(gl.bfloat16))
    fence_async_shared()
    rescale = gl.exp2(m - reference)
    total = total * rescale + gl.sum(summed, 1)
    if START == 0:
        acc = warpgroup_mma(p_chunks[0], k_chunks[0], acc, use_acc=False, is_async=True)
    else:
        factor = gl.convert_layout(rescale, gl.SliceLayout(1, A2))[:, None]
        acc = warpgroup_mma(p_chunks[0], k_chunks[0], acc * factor, is_async=True)
    for c in gl.static_range(1, COUNT):
        acc = warpgroup_mma(p_chunks[c], k_chunks[c], acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    return acc, m_new, total


@gluon.jit
def one_pass_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2, release,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_H: gl.constexpr, BLOCK_T: gl.constexpr, CHUNKS: gl.constexpr, PER_PASS: gl.constexpr,
    SEGMENT: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """The share of a split must fit: `CHUNKS` chunks of BLOCK_T candidates. SEGMENT is the tables' length."""
    wait_for_predecessor(release, OVERLAP)
    WARPS: gl.constexpr = gl.num_warps()
    WARPS_N: gl.constexpr = WARPS // 4
    Q2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    T1: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    S2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS_N], [16, BLOCK_T // WARPS_N, 16])
    A2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS_N], [16, 256, 16])
    SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    P_SMEM: gl.constexpr = gl.NVMMASharedLayout(2 * BLOCK_T, 16, 2)
    row = gl.program_id(0).to(gl.int64)
    split = gl.program_id(2)
    num_splits = gl.num_programs(2)
    head_first = gl.program_id(1) * BLOCK_H
    length, extra_length, chunks, first, last = share_of_row(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, BLOCK_T,
        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip
    # A split without candidates reads no query: to it, there are no heads
    live_heads = gl.where(first < last, heads, 0)

    address_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    scale_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    bias_smem = gl.allocate_shared_memory(gl.float32, [SEGMENT], TABLE)
    # The same tables by chunk
    addresses = address_smem._reinterpret(gl.int64, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    scales = scale_smem._reinterpret(gl.int64, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    biases = bias_smem._reinterpret(gl.float32, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, 512], SMEM)
    k_chunks = ()
    p_chunks = ()
    for _ in gl.static_range(PER_PASS):
        k_chunks += (gl.allocate_shared_memory(gl.bfloat16, [BLOCK_T, 512], SMEM),)
        p_chunks += (gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, BLOCK_T], P_SMEM),)

    slot = load_slots(
        indices_ptr + row * stride_indices, length,
        extra_indices_ptr + row * stride_extra_indices, extra_length, first, last, chunks,
        HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    q_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, Q2))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, Q2))[None, :]
    q_row_ptr = q_ptr + row * stride_q_row + q_head.to(gl.int64)[:, None] * stride_q_head
    async_copy.async_copy_global_to_shared(q_smem, q_row_ptr + column, mask=(q_head < live_heads)[:, None])
    async_copy.commit_group()
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, chunks,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    low, high = fill_tables(address_smem, bias_smem, kv_ptr, slot, token, scale, UNIT)
    words = ()
    for c in gl.static_range(CHUNKS):
        words += (fetch_tile(addresses, kv_ptr, c, UNIT, BLOCK_T),)
    scale_smem.store(packed(low, high))
    async_copy.wait_group(0)

    LM: gl.constexpr = gl.SliceLayout(1, S2)
    m = gl.full([BLOCK_H], -float("inf"), gl.float32, layout=LM)
    total = gl.full([BLOCK_H], 0.0, gl.float32, layout=LM)
    acc = gl.zeros([BLOCK_H, 512], gl.float32, layout=A2)
    for start in gl.static_range(0, CHUNKS, PER_PASS):
        acc, m, total = attend_chunks(
            q_smem, k_chunks, p_chunks, words, scales, biases, acc, m, total, scale_log2,
            start, PER_PASS if start + PER_PASS <= CHUNKS else CHUNKS - start, BLOCK_T, BLOCK_H, S2, A2,
        )  # fmt: skip
    release_successor(release, OVERLAP)
    write_result(
        q_smem, m, total, (acc,), sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
        stride_out_row, stride_out_head, stride_lse_row, HAS_SINK, BLOCK_H, FINAL, LM, gl.SliceLayout(1, A2),
    )  # fmt: skip
