"""Rung 5 with divided labour: some warps fetch and dequantise while the others multiply.

In `staged_kernel` every warp does everything in turn, so the tensor cores wait while bytes become bfloat16. Here
a block has two groups of warps (warp specialisation). The producers fetch a tile's bytes, dequantise them into a
shared buffer and report it full; the consumers multiply from it and report it empty. With two buffers, the next
tile is dequantised while this one is multiplied, and each group gets the registers that its own work needs.

Both reports go through named barriers. A block has 16 of them in hardware, each with a number. Every thread of the
group that reports *arrives* at one and goes on; every thread of the other group *waits* there until all threads of
both groups have come. Then the barrier is as new. Since every thread arrives for itself, its own arrival orders what
it wrote or read before, and its group need not meet first. Triton's own barriers take the numbers from 0 up; these
are the kernel's, with room for two buffers:

    8 + buffer     it is full: producers arrive, consumers wait
    10 + buffer    it is empty: consumers arrive, producers wait
    12             the queries are there: producers arrive, consumers wait

A barrier only counts, so each arrival needs its wait: one too many, and a later wait would end too early. A buffer's
first tile finds it empty, and producers wait from tile `BUFFERS` on only. In exchange nobody waits for a buffer after
its last tile, and consumers leave that report out.

Where a tile lies is found out ahead, in steps that each wait for memory: three tiles ahead its indices are asked
for, two tiles ahead its scales, one tile ahead its bytes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mma_v2,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.sparse_mla._candidates import ABSENT, load_scales, load_slots, locate, packed, share_of_row
from kernels.sparse_mla._overlap import release_successor, wait_for_predecessor
from kernels.sparse_mla._result import write_result
from kernels.sparse_mla._rows import fetch_tile, rows_layout, store_tile
from kernels.sparse_mla.staged import multiply_rows

# Tiles whose addresses and scales are kept: the one in use and two ahead
RING = gl.constexpr(3)
# Numbers of named barriers; the first two are those of buffer 0
FULL = gl.constexpr(8)
EMPTY = gl.constexpr(10)
READY = gl.constexpr(12)


@gluon.constexpr_function
def barrier_text(what, threads):
    # Inline assembly has to return something: $0, which nobody reads
    return f"barrier.{what} $1, {threads}; // dummy $0"


@gluon.jit
def arrive(number, THREADS: gl.constexpr):
    """Each thread counts as one of the THREADS that a named barrier expects, and goes on."""
    TEXT: gl.constexpr = barrier_text("arrive", THREADS)
    gl.inline_asm_elementwise(
        TEXT, "=r,r,~{memory}", [gl.to_tensor(number)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait(number, THREADS: gl.constexpr):
    """Each thread counts likewise, and goes on when all THREADS have come."""
    TEXT: gl.constexpr = barrier_text("sync", THREADS)
    gl.inline_asm_elementwise(
        TEXT, "=r,r,~{memory}", [gl.to_tensor(number)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def produce(
    k_smem, bias_smem,
    kv_ptr, indices_ptr, extra_kv_ptr, extra_indices_ptr,
    length, extra_length, first, last, tiles, stride_page, stride_extra_page,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, BUFFERS: gl.constexpr, THREADS: gl.constexpr,
):  # fmt: skip
    """Fill the buffers, one tile after the other: bfloat16 [BLOCK_T, 512] and a bias for each of its scores."""
    T1: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    addresses = gl.allocate_shared_memory(gl.int64, [RING, BLOCK_T], TABLE)
    scales = gl.allocate_shared_memory(gl.int64, [RING, BLOCK_T], TABLE)
    # A large tile is fetched in two halves, so that one is on its way while the other is dequantised
    PARTS: gl.constexpr = 2 if BLOCK_T >= 64 else 1
    PART_T: gl.constexpr = BLOCK_T // PARTS
    part_addresses = addresses._reinterpret(gl.int64, [RING * PARTS, PART_T], TABLE)
    part_scales = scales._reinterpret(gl.int64, [RING * PARTS, PART_T], TABLE)
    # Three tiles' indices at once, then two tiles' scales, then the bytes of the first
    slot = load_slots(indices_ptr, length, extra_indices_ptr, extra_length, first, last, tiles,
                      HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip
    second = load_slots(indices_ptr, length, extra_indices_ptr, extra_length, first + 1, last, tiles,
                        HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip
    third = load_slots(indices_ptr, length, extra_indices_ptr, extra_length, first + 2, last, tiles,
                       HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip
    token, scale = locate(slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
                          PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip
    addresses.index(0).store(gl.where(slot >= 0, token // UNIT, ABSENT))
    first_low, first_high = load_scales(kv_ptr, slot, scale)
    token, scale = locate(second, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first + 1, tiles,
                          PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip
    addresses.index(1).store(gl.where(second >= 0, token // UNIT, ABSENT))
    low, high = load_scales(kv_ptr, second, scale)
    slot = third
    nope, rope = fetch_tile(part_addresses, kv_ptr, 0, UNIT, PART_T)
    if PARTS == 2:
        nope_1, rope_1 = fetch_tile(part_addresses, kv_ptr, 1, UNIT, PART_T)
    scales.index(0).store(packed(first_low, first_high))
    # The queries, which this block's first warps asked for, are there
    async_copy.wait_group(0)
    fence_async_shared()
    arrive(READY, THREADS)
    for tile in range(first, last):
        n = tile - first
        buffer = n % BUFFERS
        if n >= BUFFERS:
            wait(EMPTY + buffer, THREADS)
        part = n % RING * PARTS
        part_ahead = (n + 1) % RING * PARTS
        k_tile = k_smem.index(buffer)
        present = addresses.index(n % RING).load(T1) != ABSENT
        bias_smem.index(buffer).store(gl.where(present, 0.0, -float("inf")))
        # Past the last tile the tables hold absent candidates, and nothing is fetched
        scale_bytes = part_scales.index(part).load(rows_layout(PART_T, gl.num_warps()))
        store_tile(k_tile.slice(0, PART_T, dim=0), nope, rope, scale_bytes, scale_bytes.to(gl.int32), PART_T)
        if PARTS == 2:
            nope, rope = fetch_tile(part_addresses, kv_ptr, part_ahead, UNIT, PART_T)
            scale_bytes = part_scales.index(part + 1).load(rows_layout(PART_T, gl.num_warps()))
            k_part = k_tile.slice(PART_T, PART_T, dim=0)
            store_tile(k_part, nope_1, rope_1, scale_bytes, scale_bytes.to(gl.int32), PART_T)
        fence_async_shared()
        arrive(FULL + buffer, THREADS)
        if PARTS == 2:
            nope_1, rope_1 = fetch_tile(part_addresses, kv_ptr, part_ahead + 1, UNIT, PART_T)
        else:
            nope, rope = fetch_tile(part_addresses, kv_ptr, part_ahead, UNIT, PART_T)
        scales.index((n + 1) % RING).store(packed(low, high))
        token, scale = locate(slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, tile + 2, tiles,
                              PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip
        addresses.index((n + 2) % RING).store(gl.where(slot >= 0, token // UNIT, ABSENT))
        low, high = load_scales(kv_ptr, slot, scale)
        slot = load_slots(indices_ptr, length, extra_indices_ptr, extra_length, tile + 3, last, tiles,
                          HAS_EXTRA, BLOCK_T, BLOCK_T, T1)  # fmt: skip


@gluon.jit
def consume(
    q_smem, k_smem, bias_smem,
    sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, first, last,
    heads, scale_log2, release, stride_out_row, stride_out_head, stride_lse_row,
    HAS_SINK: gl.constexpr, BLOCK_H: gl.constexpr, BLOCK_T: gl.constexpr, BUFFERS: gl.constexpr,
    WGMMA: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr, THREADS: gl.constexpr,
):  # fmt: skip
    """Read the buffers in the producers' order; write the block's result or partial result."""
    WARPS: gl.constexpr = gl.num_warps()
    WARPS_M: gl.constexpr = BLOCK_H // 16 if BLOCK_H // 16 < WARPS else WARPS
    WARPS_N: gl.constexpr = WARPS // WARPS_M
    if WGMMA:
        S2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS_M, WARPS_N], [16, BLOCK_T // WARPS_N, 16])
        A2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS_M, WARPS_N], [16, 256, 16])
    else:
        S2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS_M, WARPS_N], [16, 8])
        A2: gl.constexpr = S2
    LM: gl.constexpr = gl.SliceLayout(1, S2)
    LA: gl.constexpr = gl.SliceLayout(1, A2)

    m = gl.full([BLOCK_H], -float("inf"), gl.float32, layout=LM)
    total = gl.full([BLOCK_H], 0.0, gl.float32, layout=LM)
    if WGMMA:
        acc = gl.zeros([BLOCK_H, 512], gl.float32, layout=A2)
    else:
        acc_0 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
        acc_1 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
        acc_2 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
        acc_3 = gl.zeros([BLOCK_H, 128], gl.float32, layout=A2)
    product = gl.zeros([BLOCK_H, BLOCK_T], gl.float32, layout=S2)
    wait(READY, THREADS)
    for n in range(0, last - first):
        buffer = n % BUFFERS
        k_tile = k_smem.index(buffer)
        wait(FULL + buffer, THREADS)
        if WGMMA:
            product_token = warpgroup_mma(
                q_smem, k_tile.permute((1, 0)), product, use_acc=False, is_async=True
            )
            product = warpgroup_mma_wait(0, deps=[product_token])
        else:
            product = multiply_rows(q_smem, k_tile, BLOCK_H, BLOCK_T, S2)
        # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
        bias = bias_smem.index(buffer).load(gl.SliceLayout(0, S2))
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
            acc_token = warpgroup_mma(p, k_tile, acc * factor, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc_token])
        else:
            RHS: gl.constexpr = gl.DotOperandLayout(1, A2, 2)
            acc_0 = mma_v2(p, k_tile.slice(0, 128, dim=1).load(RHS), acc_0 * factor)
            acc_1 = mma_v2(p, k_tile.slice(128, 128, dim=1).load(RHS), acc_1 * factor)
            acc_2 = mma_v2(p, k_tile.slice(256, 128, dim=1).load(RHS), acc_2 * factor)
            acc_3 = mma_v2(p, k_tile.slice(384, 128, dim=1).load(RHS), acc_3 * factor)
        # No producer waits for a buffer after its last tile
        if n + BUFFERS < last - first:
            arrive(EMPTY + buffer, THREADS)

    if WGMMA:
        accs = (acc,)
    else:
        accs = (acc_0, acc_1, acc_2, acc_3)
    release_successor(release, OVERLAP)
    write_result(
        q_smem, m, total, accs, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
        stride_out_row, stride_out_head, stride_lse_row, HAS_SINK, BLOCK_H, FINAL, LM, LA,
    )  # fmt: skip


@gluon.jit
def specialised_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2, release,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_H: gl.constexpr, BLOCK_T: gl.constexpr, BUFFERS: gl.constexpr,
    WGMMA: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
    CONSUMER_WARPS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    wait_for_predecessor(release, OVERLAP)
    WARPS: gl.constexpr = gl.num_warps()
    if WGMMA:
        SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    else:
        SMEM: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    Q2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    row = gl.program_id(0).to(gl.int64)
    split = gl.program_id(2)
    num_splits = gl.num_programs(2)
    head_first = gl.program_id(1) * BLOCK_H
    length, extra_length, tiles, first, last = share_of_row(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, BLOCK_T,
        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip

    q_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, 512], SMEM)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [BUFFERS, BLOCK_T, 512], SMEM)
    bias_smem = gl.allocate_shared_memory(gl.float32, [BUFFERS, BLOCK_T], TABLE)
    THREADS: gl.constexpr = 32 * (WARPS + CONSUMER_WARPS)

    # A split without tiles reads no query
    q_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, Q2))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, Q2))[None, :]
    q_row_ptr = q_ptr + row * stride_q_row + q_head.to(gl.int64)[:, None] * stride_q_head
    live_heads = gl.where(first < last, heads, 0)
    # What the rows of heads past the last hold does not matter: a head's row reaches no other head's result
    async_copy.async_copy_global_to_shared(q_smem, q_row_ptr + column, mask=(q_head < live_heads)[:, None])
    async_copy.commit_group()

    gl.warp_specialize(
        [
            (produce, (k_smem, bias_smem,
                       kv_ptr, indices_ptr + row * stride_indices,
                       extra_kv_ptr, extra_indices_ptr + row * stride_extra_indices,
                       length, extra_length, first, last, tiles, stride_page, stride_extra_page,
                       PAGE_SIZE, EXTRA_PAGE_SIZE, UNIT, HAS_EXTRA, BLOCK_T, BUFFERS, THREADS)),
            (consume, (q_smem, k_smem, bias_smem,
                       sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, first, last,
                       heads, scale_log2, release, stride_out_row, stride_out_head, stride_lse_row,
                       HAS_SINK, BLOCK_H, BLOCK_T, BUFFERS, WGMMA, FINAL, OVERLAP, THREADS)),
        ],
        [CONSUMER_WARPS],
        [CONSUMER_REGISTERS],
    )  # fmt: skip
