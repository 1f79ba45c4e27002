"""Rung 5 for up to 8 heads: candidates are the rows of both products, the heads are their 8 columns.

A tensor core multiplies 16 rows at least: with heads as the rows, half of them would be padding. With candidates as
the rows, bytes go through registers into the tensor core, as float16 and unscaled (`_few_products`, `_operands`).

Four warps only ask for rows, as far ahead as there is room, by copies of whole rows (`_asking`, `_copied_rows`). Two
teams of four warps multiply, tile by tile in turn, and finish what they share (`_finish`, `_gifts`). A block alone has
room for four tiles, which fits on sm_120. Where a row has many candidates for each block, two blocks of a cluster take
it as a pair, with room for eight tiles each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._addresses import (
    arrive,
    fence_copies,
    init_barrier,
    opaque,
    owe_bytes,
    publish_barriers,
    smem_base,
    wait,
)
from kernels.sparse_mla._asking import ARRIVALS, ask_tile, asking_layout, prefetch_indices
from kernels.sparse_mla._candidates import load_length, load_slots
from kernels.sparse_mla._copied_rows import PITCH, read_candidates, read_columns, read_scales
from kernels.sparse_mla._few_products import LOWEST, SCORE_BYTES, add_tile, score_tile, sums_of
from kernels.sparse_mla._finish import part_bytes, share_and_finish
from kernels.sparse_mla._gifts import await_cluster, come_to_cluster
from kernels.sparse_mla._operands import columns_by_candidate
from kernels.sparse_mla._overlap import release_successor, wait_for_predecessor
from kernels.sparse_mla._queries import load_queries
from kernels.sparse_mla._result import destination, load_sink

TEAMS = gl.constexpr(2)
TEAM_WARPS = gl.constexpr(4)
# The warps of a team meet at a named barrier. Triton's own take the numbers from 0 up
MEET = gl.constexpr(("barrier.sync 14, 128; // dummy $0", "barrier.sync 15, 128; // dummy $0"))
# What lies in the reserved buffer behind the rows, in this order: see `places`
SCALES = gl.constexpr(0)
BIASES = gl.constexpr(1)
FULL = gl.constexpr(2)
EMPTY = gl.constexpr(3)
GIFTS = gl.constexpr(4)
SCORES = gl.constexpr(5)
GIVEN = gl.constexpr(6)
END = gl.constexpr(7)


@gluon.constexpr_function
def places(block_t, tiles, pair):
    """Offsets in the reserved buffer, in bytes: scales, biases, barriers of full and of empty tiles and of what teams
    are given, two tiles' scores of each team, what is given, and the buffer's end. The rows come first.
    """
    scales = tiles * block_t * PITCH.value
    biases = scales + 8 * tiles * block_t
    full = biases + 4 * tiles * block_t
    empty = full + 8 * tiles
    gifts = empty + 8 * tiles
    scores = -(-(gifts + 8 * TEAMS.value) // 128) * 128
    given = scores + TEAMS.value * 2 * block_t * SCORE_BYTES.value
    parts = TEAMS.value * (2 * TEAMS.value - 1) if pair else 0
    return scales, biases, full, empty, gifts, scores, given, given + parts * part_bytes(2)


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
        slot, first + n, base + i * (BLOCK_T * PITCH), base + AT[SCALES] + i * (BLOCK_T * 8),
        base + AT[BIASES] + i * (BLOCK_T * 4), base + AT[FULL] + i * 8,
        kv_ptr, extra_kv_ptr, tiles, stride_page, stride_extra_page,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, T1,
    )  # fmt: skip


@gluon.jit
def ask(
    base, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr, row, share, shares,
    topk, extra_topk, release, stride_page, stride_length, stride_extra_page, stride_extra_length,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr,
    BLOCK_T: gl.constexpr, TILES: gl.constexpr, PAIR: gl.constexpr, OVERLAP: gl.constexpr, AT: gl.constexpr,
):  # fmt: skip
    """Ask for the share's tiles, one after the other as there is room."""
    T1: gl.constexpr = asking_layout(BLOCK_T, gl.num_warps())
    # From the widths alone, as long as nothing may be read
    length, extra_length, tiles, first, last = share_of_block(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk,
        share, shares, BLOCK_T, False, HAS_EXTRA, False,
    )  # fmt: skip
    if OVERLAP:
        prefetch_indices(
            indices_ptr, extra_indices_ptr, topk, extra_topk, first, last, tiles, HAS_EXTRA, BLOCK_T
        )  # fmt: skip
    wait_for_predecessor(release, OVERLAP)
    if PAIR:
        come_to_cluster()
    if HAS_LENGTH or HAS_EXTRA_LENGTH:
        length, extra_length, tiles, first, last = share_of_block(
            length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk,
            share, shares, BLOCK_T, HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
        )  # fmt: skip
    slot = load_slots(
        indices_ptr, length, extra_indices_ptr, extra_length, first, last, tiles, HAS_EXTRA, BLOCK_T, BLOCK_T, T1
    )  # fmt: skip
    for n in range(last - first):
        next_slot = load_slots(
            indices_ptr, length, extra_indices_ptr, extra_length, first + n + 1, last, tiles,
            HAS_EXTRA, BLOCK_T, BLOCK_T, T1,
        )  # fmt: skip
        if n >= TILES:
            wait(base + AT[EMPTY] + n % TILES * 8, (n // TILES - 1) & 1)
            fence_copies()
        ask_for(
            n, slot, base, kv_ptr, extra_kv_ptr, first, tiles, stride_page, stride_extra_page,
            PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, TILES, AT, T1,
        )  # fmt: skip
        slot = next_slot
    if PAIR:
        await_cluster()


@gluon.jit
def meet_team(TEAM: gl.constexpr):
    """Wait for the other warps of the team."""
    gl.inline_asm_elementwise(MEET[TEAM], "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def last_tile(count, TEAM: gl.constexpr):
    """A team's last tile of `count`, or the first that would be its own."""
    return gl.maximum(count - 1 - TEAM, 0) // TEAMS * TEAMS + TEAM


@gluon.jit
def multiply(
    base, q_row_ptr, length_ptr, extra_length_ptr, sink_ptr, out_ptr, lse_ptr,
    row, split, num_splits, share, shares, block, head_first, heads, topk, extra_topk, scale_log2, release,
    stride_q_head, stride_length, stride_extra_length, stride_out_row, stride_out_head, stride_lse_row,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_T: gl.constexpr, TILES: gl.constexpr, PAIR: gl.constexpr, TEAM: gl.constexpr,
    FINAL: gl.constexpr, OVERLAP: gl.constexpr, AT: gl.constexpr,
):  # fmt: skip
    """A team's tiles, every second one of the share; write the result, or a part of it."""
    S3: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2, 1], [1, 16, 8])
    A3: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8])
    R2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    B3: gl.constexpr = gl.DotOperandLayout(1, A3, 2)
    LA: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, A3))
    if PAIR:
        come_to_cluster()
    wait_for_predecessor(0, OVERLAP)
    _, _, _, first, last = share_of_block(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk,
        share, shares, BLOCK_T, HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip
    # A share without tiles reads no query: to it, there are no heads
    live_heads = gl.where(first < last, heads - head_first, 0)
    queries, factor = load_queries(q_row_ptr, stride_q_head, live_heads, scale_log2, S3)
    head = head_first + gl.arange(0, 8, layout=LA)
    sink = load_sink(sink_ptr, head, heads, HAS_SINK and FINAL)
    LS: gl.constexpr = sums_of(gl.zeros([1, BLOCK_T, 8], gl.float32, layout=B3), BLOCK_T).type.layout
    m = gl.full([1, 8], LOWEST, gl.float32, layout=gl.SliceLayout(1, B3))
    unit = gl.zeros([8, 8], gl.float32, layout=gl.SliceLayout(1, B3))
    total = gl.zeros([1, 4, 8], gl.float32, layout=LS)
    acc = gl.zeros([8, 64, 8], gl.float32, layout=A3)
    acc_rotary = gl.zeros([64, 8], gl.float32, layout=R2)
    for n in range(TEAM, last - first, TEAMS):
        i = opaque(n % TILES)
        rows = base + i * (BLOCK_T * PITCH)
        scale_bytes = base + AT[SCALES] + i * (BLOCK_T * 8)
        biases = base + AT[BIASES] + i * (BLOCK_T * 4)
        scores = base + AT[SCORES] + n % (2 * TEAMS) * (BLOCK_T * SCORE_BYTES)
        wait(base + AT[FULL] + i * 8, (n // TILES) & 1)
        words = read_candidates(rows, BLOCK_T)
        score_tile(queries, factor, words, scores, scale_bytes, biases, scale_log2, BLOCK_T, S3)
        meet_team(TEAM)
        # Not before: all that is read from rows at once takes more registers than a thread has on sm_120
        columns = read_columns(rows, BLOCK_T)
        scales = read_scales(scale_bytes, BLOCK_T, gl.SliceLayout(2, B3))
        v = columns_by_candidate(columns, BLOCK_T)
        v = gl.convert_layout(v, gl.DotOperandLayout(0, A3, 2), assert_trivial=True)
        acc, acc_rotary, m, unit, total = add_tile(
            v, scales, scores, rows, acc, acc_rotary, m, unit, total, BLOCK_T, A3, R2
        )  # fmt: skip
        # Nobody waits for room after the share's last tiles
        if n + TILES < last - first:
            arrive(base + AT[EMPTY] + i * 8)

    release_successor(release, OVERLAP)
    out_row_ptr, stride_head, lse_row_ptr = destination(
        out_ptr, lse_ptr, row, split, num_splits, heads, stride_out_row, stride_out_head, stride_lse_row, FINAL
    )  # fmt: skip
    acc *= gl.expand_dims(gl.convert_layout(unit, gl.SliceLayout(1, A3)), 1)
    m = gl.convert_layout(gl.reshape(m, [8]), LA)
    total = gl.convert_layout(gl.reshape(gl.sum(total, 1), [8]), LA)
    given, there = base + AT[GIVEN], base + AT[GIVEN]
    if not PAIR:
        # A team leaves what it gives where its last tile's rows were
        meet_team(TEAM)
        given = base + last_tile(last - first, 1 - TEAM) % TILES * (BLOCK_T * PITCH)
        there = base + last_tile(last - first, TEAM) % TILES * (BLOCK_T * PITCH)
    share_and_finish(
        acc, acc_rotary, m, total, sink, given, there, base + AT[GIFTS], block, TEAM,
        out_row_ptr, stride_head, lse_row_ptr, head_first, heads, HAS_SINK, FINAL, PAIR, A3,
    )  # fmt: skip


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
    BLOCK_T: gl.constexpr, TILES: gl.constexpr, PAIR: gl.constexpr,
    TEAM_REGISTERS: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """TILES: room for as many. PAIR: two blocks take a share, launched as a cluster along the first axis."""
    BLOCKS: gl.constexpr = 2 if PAIR else 1
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    AT: gl.constexpr = places(BLOCK_T, TILES, PAIR)
    reserved = gl.allocate_shared_memory(gl.int32, [-(-AT[END] // 512), 128], TABLE)
    base = smem_base()
    for i in gl.static_range(TILES):
        init_barrier(base + (AT[FULL] + 8 * i), ARRIVALS * BLOCK_T)
        init_barrier(base + (AT[EMPTY] + 8 * i), 32 * TEAM_WARPS)
    for i in gl.static_range(TEAMS):
        # Of two blocks, bytes are counted; of one, the other team's threads
        init_barrier(base + (AT[GIFTS] + 8 * i), 1 if PAIR else 32 * TEAM_WARPS)
    publish_barriers()
    if PAIR:
        for i in gl.static_range(TEAMS):
            owe_bytes(base + (AT[GIFTS] + 8 * i), (TEAMS * BLOCKS - 1) * part_bytes(BLOCKS))
    block = gl.program_id(0) % BLOCKS
    row = (gl.program_id(0) // BLOCKS).to(gl.int64)
    head_first = gl.program_id(1) * 8
    share, shares = gl.program_id(2) * BLOCKS + block, gl.num_programs(2) * BLOCKS
    gl.warp_specialize(
        [
            (ask, (base, kv_ptr, indices_ptr + row * stride_indices, length_ptr,
                   extra_kv_ptr, extra_indices_ptr + row * stride_extra_indices, extra_length_ptr, row, share, shares,
                   topk, extra_topk, release, stride_page, stride_length, stride_extra_page, stride_extra_length,
                   PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
                   BLOCK_T, TILES, PAIR, OVERLAP, AT)),
            (multiply, (base, q_ptr + row * stride_q_row + head_first.to(gl.int64) * stride_q_head,
                        length_ptr, extra_length_ptr, sink_ptr, out_ptr, lse_ptr,
                        row, gl.program_id(2), gl.num_programs(2), share, shares, block, head_first,
                        heads, topk, extra_topk, scale_log2, release, stride_q_head, stride_length,
                        stride_extra_length, stride_out_row, stride_out_head, stride_lse_row,
                        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH, HAS_SINK,
                        BLOCK_T, TILES, PAIR, 0, FINAL, OVERLAP, AT)),
            (multiply, (base, q_ptr + row * stride_q_row + head_first.to(gl.int64) * stride_q_head,
                        length_ptr, extra_length_ptr, sink_ptr, out_ptr, lse_ptr,
                        row, gl.program_id(2), gl.num_programs(2), share, shares, block, head_first,
                        heads, topk, extra_topk, scale_log2, release, stride_q_head, stride_length,
                        stride_extra_length, stride_out_row, stride_out_head, stride_lse_row,
                        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH, HAS_SINK,
                        BLOCK_T, TILES, PAIR, 1, FINAL, OVERLAP, AT)),
        ],
        [TEAM_WARPS, TEAM_WARPS],
        [TEAM_REGISTERS, TEAM_REGISTERS],
    )  # fmt: skip
    # What PTX wrote to is kept until here
    reserved._keep_alive()
