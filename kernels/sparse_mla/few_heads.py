"""Rung 5 for up to 8 heads: candidates are the rows of both products, the heads are their 8 columns.

A tensor core multiplies 16 rows at least: with heads as the rows, half of them would be padding. With candidates as
the rows, bytes go through registers into the tensor core, as float16 and unscaled (`_few_products`, `_operands`).

Four warps only ask for rows, as far ahead as there is room, by copies of whole rows (`_copied_rows`). Teams of four
warps multiply, tile by tile. A block alone has one team and room for two tiles, so that two blocks fit on a
multiprocessor of sm_90 and one on sm_120. Where a row has many candidates for each block, two blocks of a cluster take
it as a pair, with two teams and room for four tiles each, and finish it together (`_finish`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

from kernels.sparse_mla._addresses import arrive, fence_copies, init_barrier, owe_bytes, smem_base, wait
from kernels.sparse_mla._candidates import load_length, load_slots
from kernels.sparse_mla._copied_rows import ARRIVALS, PITCH, ask_tile, asking_layout
from kernels.sparse_mla._few_products import add_tile, score_tile, store_queries
from kernels.sparse_mla._finish import (
    FINISHERS,
    PART,
    come_to_cluster,
    share_and_finish,
    write_columns,
)
from kernels.sparse_mla._overlap import release_successor, wait_for_predecessor
from kernels.sparse_mla._result import destination, statistics

# The warps that ask meet at a named barrier. Triton's own take the numbers from 0 up
MEET = gl.constexpr("barrier.sync 15, 128; // dummy $0")
SWIZZLED = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))


@gluon.constexpr_function
def places(block_t, tiles, teams):
    """Offsets in the reserved buffer, in bytes: scales, biases, barriers of full and of empty tiles, of the queries
    and of what teams are given, and that itself. The rows come first. The last number is the buffer's size.
    """
    scales = tiles * block_t * PITCH.value
    biases = scales + 8 * tiles * block_t
    full = biases + 4 * tiles * block_t
    empty = full + 8 * tiles
    queries = empty + 8 * tiles
    gifts = queries + 8
    given = -(-(gifts + 8 * teams) // 128) * 128
    parts = teams * (FINISHERS.value - 1) if teams > 1 else 0
    return scales, biases, full, empty, queries, gifts, given, given + parts * PART.value


@gluon.jit
def share_of_block(
    length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, share, shares,
    BLOCK_T: gl.constexpr, HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr,
):  # fmt: skip
    """The row's live lengths, tiles of its main cache, and the first and the last tile (excluded) of a share."""
    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    tiles = (length + BLOCK_T - 1) // BLOCK_T
    all_tiles = tiles
    extra_length = 0
    if HAS_EXTRA:
        extra_length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
        all_tiles += (extra_length + BLOCK_T - 1) // BLOCK_T
    return length, extra_length, tiles, share * all_tiles // shares, (share + 1) * all_tiles // shares


@gluon.jit
def ask_for(
    n, slot, base, kv_ptr, extra_kv_ptr, first, tiles, stride_page, stride_extra_page,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, TILES: gl.constexpr, AT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """Ask for the share's tile n."""
    i = n % TILES
    ask_tile(
        slot, first + n, base + i * (BLOCK_T * PITCH), base + AT[0] + i * (BLOCK_T * 8),
        base + AT[1] + i * (BLOCK_T * 4), base + AT[2] + i * 8,
        kv_ptr, extra_kv_ptr, tiles, stride_page, stride_extra_page,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, T1,
    )  # fmt: skip


@gluon.jit
def prepare_queries(q_smem, unit_smem, scale_log2, barrier):
    """When the copied queries are there, bring them into the form that the first product takes, and say so."""
    Q2: gl.constexpr = gl.BlockedLayout([1, 16], [1, 32], [gl.num_warps(), 1], [1, 0])
    async_copy.wait_group(0)
    q = q_smem._reinterpret(gl.bfloat16, [8, 512], SWIZZLED).load(Q2)
    store_queries(q, q_smem, unit_smem, scale_log2)
    arrive(barrier)


@gluon.jit
def ask(
    slot, q_smem, unit_smem, scale_log2, base, kv_ptr, indices_ptr, extra_kv_ptr, extra_indices_ptr,
    length, extra_length, first, last, tiles, stride_page, stride_extra_page,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, TILES: gl.constexpr, AT: gl.constexpr,
):  # fmt: skip
    """Ask for one tile after the other as there is room, beginning with the second; `slot` is of its candidates."""
    T1: gl.constexpr = asking_layout(BLOCK_T, gl.num_warps())
    for n in range(1, last - first):
        next_slot = load_slots(
            indices_ptr, length, extra_indices_ptr, extra_length, first + n + 1, last, tiles,
            HAS_EXTRA, BLOCK_T, BLOCK_T, T1,
        )  # fmt: skip
        if n >= TILES:
            wait(base + AT[3] + n % TILES * 8, (n // TILES - 1) & 1)
            fence_copies()
        ask_for(
            n, slot, base, kv_ptr, extra_kv_ptr, first, tiles, stride_page, stride_extra_page,
            PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, TILES, AT, T1,
        )  # fmt: skip
        slot = next_slot
        if n == 1:
            prepare_queries(q_smem, unit_smem, scale_log2, base + AT[4])
    if last - first < 2:
        prepare_queries(q_smem, unit_smem, scale_log2, base + AT[4])


@gluon.jit
def multiply(
    handed, q_smem, unit_smem, base, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, block, head_first,
    first, last, heads, scale_log2, release, stride_out_row, stride_out_head, stride_lse_row,
    HAS_SINK: gl.constexpr, BLOCK_T: gl.constexpr, TILES: gl.constexpr, PAIR: gl.constexpr, TEAM: gl.constexpr,
    FINAL: gl.constexpr, OVERLAP: gl.constexpr, AT: gl.constexpr,
):  # fmt: skip
    """A team's tiles, every second one where there are two teams; write the result, or a part of it."""
    WARPS: gl.constexpr = gl.num_warps()
    TEAMS: gl.constexpr = 2 if PAIR else 1
    S2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    A3: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    R2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    LM: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, gl.DotOperandLayout(1, A3, 2)))
    if PAIR:
        come_to_cluster()
    m = gl.full([8], -float("inf"), gl.float32, layout=LM)
    total = gl.full([8], 0.0, gl.float32, layout=LM)
    acc = gl.zeros([8, 64, 8], gl.float32, layout=A3)
    acc_rotary = gl.zeros([64, 8], gl.float32, layout=R2)
    wait(base + AT[4], 0)
    for n in range(TEAM, last - first, TEAMS):
        i = n % TILES
        rows = base + i * (BLOCK_T * PITCH)
        wait(base + AT[2] + i * 8, (n // TILES) & 1)
        score_tile(
            handed, q_smem, unit_smem, rows, base + AT[0] + i * (BLOCK_T * 8), base + AT[1] + i * (BLOCK_T * 4),
            scale_log2, BLOCK_T, S2,
        )  # fmt: skip
        acc, acc_rotary, m, total = add_tile(handed, rows, acc, acc_rotary, m, total, BLOCK_T, A3, R2)
        # Nobody waits for room after the share's last tiles
        if n + TILES < last - first:
            arrive(base + AT[3] + i * 8)

    release_successor(release, OVERLAP)
    out_row_ptr, stride_head, lse_row_ptr = destination(
        out_ptr, lse_ptr, row, split, num_splits, heads, stride_out_row, stride_out_head, stride_lse_row, FINAL
    )  # fmt: skip
    if PAIR:
        share_and_finish(
            acc, acc_rotary, m, total, base + AT[6], base + AT[5], block, TEAM,
            sink_ptr, out_row_ptr, stride_head, lse_row_ptr, head_first, heads, HAS_SINK, FINAL, A3,
        )  # fmt: skip
    else:
        head = head_first + gl.arange(0, 8, layout=LM)
        lse, factor = statistics(m, total, sink_ptr, head, heads, HAS_SINK, FINAL)
        gl.store(lse_row_ptr + head, lse, mask=head < heads)
        write_columns(acc, acc_rotary, factor, out_row_ptr, stride_head, head_first, heads, A3, R2)


@gluon.jit
def team_memory(BLOCK_T: gl.constexpr, WARPS: gl.constexpr):
    """What a team's first product hands over to its second: weights, scales, the warps' maxima and sums."""
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    return (
        gl.allocate_shared_memory(gl.float32, [BLOCK_T // 2, 8, 2], CUBE),
        gl.allocate_shared_memory(gl.float32, [8, BLOCK_T], PLAIN),
        gl.allocate_shared_memory(gl.float32, [WARPS, 8], PLAIN),
        gl.allocate_shared_memory(gl.float32, [WARPS, 8], PLAIN),
    )


@gluon.jit
def few_heads_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2, release,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_T: gl.constexpr, TILES: gl.constexpr, PAIR: gl.constexpr, TEAM_WARPS: gl.constexpr,
    TEAM_REGISTERS: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """TILES: room for as many. PAIR: two blocks take a share, launched as a cluster along the first axis."""
    BLOCKS: gl.constexpr = 2 if PAIR else 1
    TEAMS: gl.constexpr = 2 if PAIR else 1
    ASKERS: gl.constexpr = 32 * gl.num_warps()
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    AT: gl.constexpr = places(BLOCK_T, TILES, TEAMS)
    T1: gl.constexpr = asking_layout(BLOCK_T, gl.num_warps())
    QC: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps(), 1], [1, 0])
    reserved = gl.allocate_shared_memory(gl.int32, [-(-AT[7] // 512), 128], TABLE)
    base = smem_base()
    for i in gl.static_range(TILES):
        init_barrier(base + (AT[2] + 8 * i), ARRIVALS * BLOCK_T)
        init_barrier(base + (AT[3] + 8 * i), 32 * TEAM_WARPS)
    init_barrier(base + AT[4], ASKERS)
    if PAIR:
        for i in gl.static_range(TEAMS):
            init_barrier(base + (AT[5] + 8 * i), 1)
            owe_bytes(base + (AT[5] + 8 * i), (FINISHERS - 1) * PART)
    wait_for_predecessor(release, OVERLAP)
    if PAIR:
        come_to_cluster()
    block = gl.program_id(0) % BLOCKS
    row = (gl.program_id(0) // BLOCKS).to(gl.int64)
    head_first = gl.program_id(1) * 8
    length, extra_length, tiles, first, last = share_of_block(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk,
        gl.program_id(2) * BLOCKS + block, gl.num_programs(2) * BLOCKS,
        BLOCK_T, HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip
    row_indices_ptr = indices_ptr + row * stride_indices
    extra_row_indices_ptr = extra_indices_ptr + row * stride_extra_indices
    slot = load_slots(
        row_indices_ptr, length, extra_row_indices_ptr, extra_length, first, last, tiles,
        HAS_EXTRA, BLOCK_T, BLOCK_T, T1,
    )  # fmt: skip
    next_slot = load_slots(
        row_indices_ptr, length, extra_row_indices_ptr, extra_length, first + 1, last, tiles,
        HAS_EXTRA, BLOCK_T, BLOCK_T, T1,
    )  # fmt: skip
    q_smem = gl.allocate_shared_memory(gl.float16, [8, 512], SWIZZLED)
    unit_smem = gl.allocate_shared_memory(gl.float32, [8], TABLE)
    # A share without tiles reads no query: to it, there are no heads
    live_heads = gl.where(first < last, heads, 0)
    head = head_first + gl.arange(0, 8, layout=gl.SliceLayout(1, QC))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, QC))[None, :]
    q_row_ptr = q_ptr + row * stride_q_row + head.to(gl.int64)[:, None] * stride_q_head
    async_copy.async_copy_global_to_shared(
        q_smem._reinterpret(gl.bfloat16, [8, 512], SWIZZLED), q_row_ptr + column, mask=(head < live_heads)[:, None]
    )  # fmt: skip
    async_copy.commit_group()
    # The barriers are set up. The first tile's rows are on their way before the teams are called upon
    gl.inline_asm_elementwise(MEET, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)
    if first < last:
        ask_for(
            0, slot, base, kv_ptr, extra_kv_ptr, first, tiles, stride_page, stride_extra_page,
            PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, TILES, AT, T1,
        )  # fmt: skip
    handed = team_memory(BLOCK_T, TEAM_WARPS)
    if PAIR:
        others_handed = team_memory(BLOCK_T, TEAM_WARPS)
        gl.warp_specialize(
            [
                (ask, (next_slot, q_smem, unit_smem, scale_log2, base,
                       kv_ptr, row_indices_ptr, extra_kv_ptr, extra_row_indices_ptr,
                       length, extra_length, first, last, tiles, stride_page, stride_extra_page,
                       PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, TILES, AT)),
                (multiply, (handed, q_smem, unit_smem, base, sink_ptr, out_ptr, lse_ptr,
                            row, gl.program_id(2), gl.num_programs(2), block, head_first,
                            first, last, heads, scale_log2, release, stride_out_row, stride_out_head, stride_lse_row,
                            HAS_SINK, BLOCK_T, TILES, PAIR, 0, FINAL, OVERLAP, AT)),
                (multiply, (others_handed, q_smem, unit_smem, base, sink_ptr, out_ptr, lse_ptr,
                            row, gl.program_id(2), gl.num_programs(2), block, head_first,
                            first, last, heads, scale_log2, release, stride_out_row, stride_out_head, stride_lse_row,
                            HAS_SINK, BLOCK_T, TILES, PAIR, 1, FINAL, OVERLAP, AT)),
            ],
            [TEAM_WARPS, TEAM_WARPS],
            [TEAM_REGISTERS, TEAM_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (ask, (next_slot, q_smem, unit_smem, scale_log2, base,
                       kv_ptr, row_indices_ptr, extra_kv_ptr, extra_row_indices_ptr,
                       length, extra_length, first, last, tiles, stride_page, stride_extra_page,
                       PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, TILES, AT)),
                (multiply, (handed, q_smem, unit_smem, base, sink_ptr, out_ptr, lse_ptr,
                            row, gl.program_id(2), gl.num_programs(2), block, head_first,
                            first, last, heads, scale_log2, release, stride_out_row, stride_out_head, stride_lse_row,
                            HAS_SINK, BLOCK_T, TILES, PAIR, 0, FINAL, OVERLAP, AT)),
            ],
            [TEAM_WARPS],
            [TEAM_REGISTERS],
        )  # fmt: skip
    # What PTX wrote to is kept until here
    reserved._keep_alive()
