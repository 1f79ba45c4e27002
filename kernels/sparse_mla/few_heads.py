"""Rung 5 for a tensor-parallel rank's few heads: tokens are the rows of both products, heads their columns.

A tensor core multiplies 16 or 64 rows at a time. With queries as rows, 8 heads are padded to 16 and every block loads
them again for every tile. Here the keys are the rows of the scores, K Q^T, and the value columns are the rows of the
output, V^T P^T: nothing is padded at 8 heads, and on sm_90 both products read the tile's rows straight from shared
memory. The result is turned round once, when it is written.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mma_v2,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from kernels.sparse_mla.staged import (
    LAUNCH,
    WAIT,
    fetch_tile,
    fill_tables,
    load_slots,
    locate,
    multiply_rows,
    packed,
    share_of_row,
    store_tile,
    write_result,
)


@gluon.jit
def few_heads_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_H: gl.constexpr, BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, BUFFERS: gl.constexpr,
    WGMMA: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    if OVERLAP:
        gl.inline_asm_elementwise(WAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        gl.inline_asm_elementwise(LAUNCH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    WARPS: gl.constexpr = gl.num_warps()
    Q2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    T1: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    # Both products have this layout: [BLOCK_T, BLOCK_H] scores and [512, BLOCK_H] outputs
    if WGMMA:
        P2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_H, 16])
        SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    else:
        P2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
        SMEM: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    LH: gl.constexpr = gl.SliceLayout(0, P2)
    WIDTH: gl.constexpr = 512 if WGMMA else 128

    row = gl.program_id(0).to(gl.int64)
    split = gl.program_id(2)
    num_splits = gl.num_programs(2)
    head_first = gl.program_id(1) * BLOCK_H
    length, extra_length, tiles, first, last = share_of_row(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, BLOCK_T,
        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip
    # A split without tiles reads no query: to it, there are no heads
    live_heads = gl.where(first < last, heads, 0)

    address_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    scale_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    bias_smem = gl.allocate_shared_memory(gl.float32, [SEGMENT], TABLE)
    addresses = address_smem._reinterpret(gl.int64, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    scales = scale_smem._reinterpret(gl.int64, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    biases = bias_smem._reinterpret(gl.float32, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, 512], SMEM)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [BUFFERS, BLOCK_T, 512], SMEM)
    if WGMMA:
        p_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, BLOCK_T], SMEM)

    row_indices_ptr = indices_ptr + row * stride_indices
    extra_row_indices_ptr = extra_indices_ptr + row * stride_extra_indices
    slot = load_slots(
        row_indices_ptr, length, extra_row_indices_ptr, extra_length, first, last, tiles,
        HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    q_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, Q2))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, Q2))[None, :]
    q_row_ptr = q_ptr + row * stride_q_row + q_head.to(gl.int64)[:, None] * stride_q_head
    # Heads past the last leave their rows of the buffer as they are: a head's row reaches no other head's result
    async_copy.async_copy_global_to_shared(q_smem, q_row_ptr + column, mask=(q_head < live_heads)[:, None])
    async_copy.commit_group()

    m = gl.full([BLOCK_H], -float("inf"), gl.float32, layout=LH)
    # Each thread adds up its own tokens; the threads' sums meet after the loop
    totals = gl.zeros([BLOCK_T, BLOCK_H], gl.float32, layout=P2)
    if WGMMA:
        acc = warpgroup_mma_init(gl.zeros([512, BLOCK_H], gl.float32, layout=P2))
    else:
        accs = (gl.zeros([128, BLOCK_H], gl.float32, layout=P2),) * 4
    product = gl.zeros([BLOCK_T, BLOCK_H], gl.float32, layout=P2)
    TILES: gl.constexpr = SEGMENT // BLOCK_T
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    low, high = fill_tables(address_smem, bias_smem, kv_ptr, slot, token, scale, UNIT)
    nope, rope = fetch_tile(addresses, kv_ptr, 0, UNIT, BLOCK_T)
    scale_smem.store(packed(low, high))
    async_copy.wait_group(0)
    for tile in range(first, last):
        i = (tile - first) % TILES
        k_tile = k_smem.index((tile - first) % BUFFERS)
        if WGMMA and BUFFERS == 1:
            # The last tile's products read the only buffer until they are done
            acc_value = warpgroup_mma_wait(0, deps=[acc])
        store_tile(k_tile, nope, rope, scales, i, BLOCK_T)
        bias = biases.index(i).load(gl.SliceLayout(1, P2))
        if i == TILES - 1:
            slot = load_slots(
                row_indices_ptr, length, extra_row_indices_ptr, extra_length, tile + 1, last, tiles,
                HAS_EXTRA, BLOCK_T, SEGMENT, T1,
            )  # fmt: skip
            token, scale = locate(
                slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, tile + 1, tiles,
                PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
            )  # fmt: skip
            low, high = fill_tables(address_smem, bias_smem, kv_ptr, slot, token, scale, UNIT)
            scale_smem.store(packed(low, high))
        # Past the last tile the tables hold absent candidates, and nothing is fetched
        nope, rope = fetch_tile(addresses, kv_ptr, (i + 1) % TILES, UNIT, BLOCK_T)
        if WGMMA:
            fence_async_shared()
            product_token = warpgroup_mma(
                k_tile, q_smem.permute((1, 0)), product, use_acc=False, is_async=True
            )
            if BUFFERS == 1:
                product = warpgroup_mma_wait(0, deps=[product_token])
            else:
                product, acc_value = warpgroup_mma_wait(0, deps=[product_token, acc])
        else:
            product = multiply_rows(k_tile, q_smem, BLOCK_T, BLOCK_H, 4, P2)
        # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
        scores = gl.where((bias == 0.0)[:, None], product * scale_log2, -float("inf"))

        m_new = gl.maximum(m, gl.max(scores, 0))
        reference = gl.where(m_new == -float("inf"), 0.0, m_new)
        weights = gl.exp2(scores - reference[None, :])
        rescale = gl.exp2(m - reference)[None, :]
        m = m_new
        totals = totals * rescale + weights
        if WGMMA:
            p_smem.permute((1, 0)).store(weights.to(gl.bfloat16))
            fence_async_shared()
            acc = warpgroup_mma(
                k_tile.permute((1, 0)), p_smem.permute((1, 0)), acc_value * rescale, is_async=True
            )
        else:
            p = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(1, P2, 2))
            longer = ()
            for b in gl.static_range(4):
                v = k_tile.slice(b * WIDTH, WIDTH, dim=1).permute((1, 0)).load(gl.DotOperandLayout(0, P2, 2))
                longer += (mma_v2(v, p, accs[b] * rescale),)
            accs = longer

    if WGMMA:
        accs = (warpgroup_mma_wait(0, deps=[acc]),)
    turned = ()
    for b in gl.static_range(512 // WIDTH):
        turned += (accs[b].permute((1, 0)),)
    write_result(
        q_smem, m, gl.sum(totals, 0), turned, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
        stride_out_row, stride_out_head, stride_lse_row, HAS_SINK, BLOCK_H, FINAL, LH,
        gl.SliceLayout(1, turned[0].type.layout),
    )  # fmt: skip
