"""Rung 5: shared memory laid out by hand, in Gluon. The same split-K, for 64 heads a block where they fit.

Plain Triton converts a dequantised tile twice, once for each product, with a pair of barriers each time. Here a
tile is written once into a swizzled buffer that both products read: `wgmma` from it directly on sm_90, `mma.sync`
through `ldmatrix` elsewhere. Addresses and scales of a segment of candidates are worked out once, by one thread
a candidate, and looked up afterwards. The bytes of the next tile are on their way while the current one is used.

Gluon has no interpreter: this rung runs on a GPU only. It needs caches aligned to 4 bytes.
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

from kernels.sparse_mla._candidates import (
    fill_segment,
    fill_tables,
    load_scales,
    load_slots,
    locate,
    packed,
    share_of_row,
)
from kernels.sparse_mla._overlap import release_successor, wait_for_predecessor
from kernels.sparse_mla._result import write_result
from kernels.sparse_mla._rows import fetch_tile, rows_layout, store_tile


@gluon.jit
def multiply_rows(a_smem, b_smem, M: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr):
    """Rows of [M, 512] times rows of [N, 512] by `mma.sync` -> float32 [M, N].

    In two or four sums of a few columns each: one sum of 512 would be a chain of 32 products that wait for one
    another.
    """
    A: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 2)
    SUMS: gl.constexpr = 4 if M < 64 else 2
    WIDTH: gl.constexpr = 512 // SUMS
    product = (gl.zeros([M, N], gl.float32, layout=LAYOUT),) * SUMS
    for start in gl.static_range(0, WIDTH, 64):
        longer = ()
        for i in gl.static_range(SUMS):
            a = a_smem.slice(i * WIDTH + start, 64, dim=1).load(A)
            b = b_smem.slice(i * WIDTH + start, 64, dim=1).permute((1, 0)).load(B)
            longer += (mma_v2(a, b, product[i]),)
        product = longer
    total = product[0] + product[1]
    if SUMS == 4:
        total += product[2] + product[3]
    return total


@gluon.jit
def staged_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2, release,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_H: gl.constexpr, BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, BUFFERS: gl.constexpr,
    WGMMA: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    wait_for_predecessor(release, OVERLAP)
    WARPS: gl.constexpr = gl.num_warps()
    WARPS_M: gl.constexpr = BLOCK_H // 16 if BLOCK_H // 16 < WARPS else WARPS
    WARPS_N: gl.constexpr = WARPS // WARPS_M
    Q2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    T1: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    if WGMMA:
        S2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS_M, WARPS_N], [16, BLOCK_T // WARPS_N, 16])
        A2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS_M, WARPS_N], [16, 256, 16])
        SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    else:
        S2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS_M, WARPS_N], [16, 8])
        A2: gl.constexpr = S2
        SMEM: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])

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
    # The same tables by tile: a tile's row can be chosen at run time
    addresses = address_smem._reinterpret(gl.int64, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    scales = scale_smem._reinterpret(gl.int64, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    biases = bias_smem._reinterpret(gl.float32, [SEGMENT // BLOCK_T, BLOCK_T], TABLE)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, 512], SMEM)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [BUFFERS, BLOCK_T, 512], SMEM)

    row_indices_ptr = indices_ptr + row * stride_indices
    extra_row_indices_ptr = extra_indices_ptr + row * stride_extra_indices
    slot = load_slots(
        row_indices_ptr, length, extra_row_indices_ptr, extra_length, first, last, tiles,
        HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    q_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, Q2))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, Q2))[None, :]
    q_row_ptr = q_ptr + row * stride_q_row + q_head.to(gl.int64)[:, None] * stride_q_head
    # What the rows of heads past the last hold does not matter: a head's row reaches no other head's result
    async_copy.async_copy_global_to_shared(q_smem, q_row_ptr + column, mask=(q_head < live_heads)[:, None])
    async_copy.commit_group()

    LM: gl.constexpr = gl.SliceLayout(1, S2)
    LA: gl.constexpr = gl.SliceLayout(1, A2)
    m = gl.full([BLOCK_H], -float("inf"), gl.float32, layout=LM)
    total = gl.full([BLOCK_H], 0.0, gl.float32, layout=LM)
    if WGMMA:
        acc = warpgroup_mma_init(gl.zeros([BLOCK_H, 512], gl.float32, layout=A2))
    else:
        acc_0 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
        acc_1 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
        acc_2 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
        acc_3 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)

    product = gl.zeros([BLOCK_H, BLOCK_T], gl.float32, layout=S2)
    TILES: gl.constexpr = SEGMENT // BLOCK_T
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    fill_tables(address_smem, bias_smem, slot, token, UNIT)
    low, high = load_scales(kv_ptr, slot, scale)
    nope, rope = fetch_tile(addresses, kv_ptr, 0, UNIT, BLOCK_T)
    scale_smem.store(packed(low, high))
    async_copy.wait_group(0)
    for tile in range(first, last):
        i = (tile - first) % TILES
        k_tile = k_smem.index((tile - first) % BUFFERS)
        if WGMMA and BUFFERS == 1:
            # The last tile's products read the only buffer until they are done
            acc_value = warpgroup_mma_wait(0, deps=[acc])
        scale_bytes = scales.index(i).load(rows_layout(BLOCK_T, WARPS))
        store_tile(k_tile, nope, rope, scale_bytes, scale_bytes.to(gl.int32), BLOCK_T)
        bias = biases.index(i).load(gl.SliceLayout(0, S2))
        if i == TILES - 1:
            slot, scale = fill_segment(
                address_smem, bias_smem, kv_ptr, extra_kv_ptr, row_indices_ptr, extra_row_indices_ptr,
                length, extra_length, tile + 1, last, tiles, stride_page, stride_extra_page,
                PAGE_SIZE, EXTRA_PAGE_SIZE, UNIT, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
            )  # fmt: skip
            low, high = load_scales(kv_ptr, slot, scale)
            scale_smem.store(packed(low, high))
        # Past the last tile the tables hold absent candidates, and nothing is fetched
        nope, rope = fetch_tile(addresses, kv_ptr, (i + 1) % TILES, UNIT, BLOCK_T)
        if WGMMA:
            fence_async_shared()
            product_token = warpgroup_mma(
                q_smem, k_tile.permute((1, 0)), product, use_acc=False, is_async=True
            )
            if BUFFERS == 1:
                product = warpgroup_mma_wait(0, deps=[product_token])
            else:
                product, acc_value = warpgroup_mma_wait(0, deps=[product_token, acc])
        else:
            product = multiply_rows(q_smem, k_tile, BLOCK_H, BLOCK_T, S2)
        # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
        scores = gl.where((bias == 0.0)[None, :], product * scale_log2, -float("inf"))

        m_new = gl.maximum(m, gl.max(scores, 1))
        reference = gl.where(m_new == -float("inf"), 0.0, m_new)
        weights = gl.exp2(scores - reference[:, None])
        rescale = gl.exp2(m - reference)
        m = m_new
        total = total * rescale + gl.sum(weights, 1)
        p = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(0, A2, 2))
        factor = gl.convert_layout(rescale, LA)[:, None]
        if WGMMA:
            acc = warpgroup_mma(p, k_tile, acc_value * factor, is_async=True)
        else:
            RHS: gl.constexpr = gl.DotOperandLayout(1, A2, 2)
            acc_0 = mma_v2(p, k_tile.slice(0, 128, dim=1).load(RHS), acc_0 * factor)
            acc_1 = mma_v2(p, k_tile.slice(128, 128, dim=1).load(RHS), acc_1 * factor)
            acc_2 = mma_v2(p, k_tile.slice(256, 128, dim=1).load(RHS), acc_2 * factor)
            acc_3 = mma_v2(p, k_tile.slice(384, 128, dim=1).load(RHS), acc_3 * factor)

    if WGMMA:
        accs = (warpgroup_mma_wait(0, deps=[acc]),)
    else:
        accs = (acc_0, acc_1, acc_2, acc_3)
    release_successor(release, OVERLAP)
    write_result(
        q_smem, m, total, accs, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
        stride_out_row, stride_out_head, stride_lse_row, HAS_SINK, BLOCK_H, FINAL, LM, LA,
    )  # fmt: skip
