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

from kernels.sparse_mla._dequantize import HALVES, PACKED, SELECTOR
from kernels.sparse_mla.tiles import RELEASES

# No address: far below any distance between two caches, and still in range when multiplied by UNIT
ABSENT = gl.constexpr(-(1 << 58))
WAIT = gl.constexpr("griddepcontrol.wait; // dummy $0")
LAUNCH = gl.constexpr("griddepcontrol.launch_dependents; // dummy $0")
AT_START = gl.constexpr(RELEASES["start"])
AT_RESULT = gl.constexpr(RELEASES["result"])


@gluon.jit
def wait_for_predecessor(release, OVERLAP: gl.constexpr):
    """Wait for the kernel before this one; let the next one start, if it should as early as this."""
    if OVERLAP:
        gl.inline_asm_elementwise(WAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        if release == AT_START:
            gl.inline_asm_elementwise(LAUNCH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def release_successor(release, OVERLAP: gl.constexpr):
    """Let the next kernel start, if it should when a block is about to write."""
    if OVERLAP:
        if release == AT_RESULT:
            gl.inline_asm_elementwise(LAUNCH, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_length(length_ptr, row, stride, capacity, HAS_LENGTH: gl.constexpr):
    """The number of candidates of `row` that count, between 0 and `capacity`."""
    length = capacity
    if HAS_LENGTH:
        length = gl.minimum(gl.maximum(gl.load(length_ptr + row * stride).to(gl.int32), 0), capacity)
    return length


@gluon.jit
def share_of_row(
    length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, BLOCK_T: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr,
):  # fmt: skip
    """The row's live lengths, tiles of its main cache, and the first and the last tile (excluded) of this split."""
    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    tiles = (length + BLOCK_T - 1) // BLOCK_T
    all_tiles = tiles
    extra_length = 0
    if HAS_EXTRA:
        extra_length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
        all_tiles += (extra_length + BLOCK_T - 1) // BLOCK_T
    split = gl.program_id(2)
    first = split * all_tiles // gl.num_programs(2)
    last = (split + 1) * all_tiles // gl.num_programs(2)
    return length, extra_length, tiles, first, last


@gluon.jit
def load_slots(
    indices_ptr, length, extra_indices_ptr, extra_length, first, last, tiles,
    HAS_EXTRA: gl.constexpr, BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """Slots of the candidates of a segment of tiles, one a thread; negative where absent."""
    j = gl.arange(0, SEGMENT, layout=T1)
    tile = first + j // BLOCK_T
    position = tile * BLOCK_T + j % BLOCK_T
    in_range = tile < last
    mask = in_range & (position < length)
    row_ptr = indices_ptr + position
    if HAS_EXTRA:
        # One load from either row: merging two would wait for both
        extra_position = position - tiles * BLOCK_T
        extra = tile >= tiles
        row_ptr = gl.where(extra, extra_indices_ptr + extra_position, row_ptr)
        mask = in_range & gl.where(extra, extra_position < extra_length, position < length)
    return gl.load(row_ptr, mask=mask, other=-1)


@gluon.jit
def locate(
    slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """Byte offsets from `kv_ptr` of the slots' token rows and scale rows.

    The extra cache is reached from the same pointer, through the distance between the two.
    """
    slot = gl.maximum(slot, 0)
    page = slot // PAGE_SIZE
    size = PAGE_SIZE
    distance = 0
    if HAS_EXTRA:
        extra = first + gl.arange(0, SEGMENT, layout=T1) // BLOCK_T >= tiles
        if EXTRA_PAGE_SIZE != PAGE_SIZE:
            page = gl.where(extra, slot // EXTRA_PAGE_SIZE, page)
            size = gl.where(extra, EXTRA_PAGE_SIZE, PAGE_SIZE)
        stride_page = gl.where(extra, stride_extra_page, stride_page)
        distance = gl.where(extra, extra_kv_ptr.to(gl.int64) - kv_ptr.to(gl.int64), 0)
    offset = slot - page * size
    base = page.to(gl.int64) * stride_page + distance
    return base + offset * 576, base + (576 * size + offset * 8)


@gluon.jit
def load_scales(kv_ptr, slot, scale):
    """The eight scale bytes of each candidate as two words; 0 where there is no candidate."""
    scale_ptr = (kv_ptr + scale).to(gl.pointer_type(gl.int32))
    low = gl.load(scale_ptr, mask=slot >= 0, other=0)
    high = gl.load(scale_ptr + 1, mask=slot >= 0, other=0)
    return low, high


@gluon.jit
def packed(low, high):
    """Two words of scale bytes as an int64."""
    return (high.to(gl.int64) << 32) | (low.to(gl.int64) & 0xFFFFFFFF)


@gluon.jit
def fill_tables(address_smem, bias_smem, slot, token, UNIT: gl.constexpr):
    """Write where each candidate of a segment lies and what masks its score.

    Addresses are in units of UNIT bytes from `kv_ptr`, ABSENT where there is no candidate. They may be negative:
    the extra cache can lie before the main one.
    """
    valid = slot >= 0
    address_smem.store(gl.where(valid, token // UNIT, ABSENT))
    bias_smem.store(gl.where(valid, 0.0, -float("inf")))


@gluon.jit
def copy_scales(scale_smem, kv_ptr, slot, scale):
    """Start copying the eight scale bytes of each candidate, int64; 0 where there is no candidate. A group of copies.

    Through registers, they would be waited for before the last rows are asked for.
    """
    W2: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [gl.num_warps(), 1], [1, 0])
    LW: gl.constexpr = gl.SliceLayout(1, W2)
    words = scale_smem._reinterpret(gl.int32, [slot.shape[0], 2], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    scale_ptr = (kv_ptr + gl.convert_layout(scale, LW, assert_trivial=True)).to(gl.pointer_type(gl.int32))
    word = gl.arange(0, 2, layout=gl.SliceLayout(0, W2))[None, :]
    mask = gl.convert_layout(slot >= 0, LW, assert_trivial=True)[:, None]
    async_copy.async_copy_global_to_shared(words, scale_ptr[:, None] + word, mask=mask)
    async_copy.commit_group()


@gluon.jit
def fill_segment(
    address_smem, bias_smem, kv_ptr, extra_kv_ptr, indices_ptr, extra_indices_ptr,
    length, extra_length, first, last, tiles, stride_page, stride_extra_page,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """The tables of the segment that starts with tile `first`, from its indices on, but for the scales.

    Returns:
        The candidates' slots, and where their scales lie.
    """
    slot = load_slots(
        indices_ptr, length, extra_indices_ptr, extra_length, first, last, tiles, HAS_EXTRA, BLOCK_T, SEGMENT, T1
    )  # fmt: skip
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    fill_tables(address_smem, bias_smem, slot, token, UNIT)
    return slot, scale


@gluon.constexpr_function
def tile_layouts(block_t: int, num_warps: int):
    """Who holds what of a tile: words [block_t, 8, 16], rotary words [block_t, 32], columns [block_t, 8, 64] and
    [block_t, 512].

    A thread holds 16 columns of a row in each of eight groups of 64: seven are scaled, the last is rotary. Where the
    rows are enough for all warps, the group is a register's number, so that the compiler knows which is which.
    """
    rows = min(num_warps, block_t // 8)
    groups = num_warps // rows
    return (
        gl.BlockedLayout([1, 1, 4], [8, 1, 4], [rows, groups, 1], [2, 1, 0]),
        gl.SliceLayout(1, gl.BlockedLayout([1, 1, 8], [8, 1, 4], [rows, groups, 1], [2, 1, 0])),
        gl.BlockedLayout([1, 1, 16], [8, 1, 4], [rows, groups, 1], [2, 1, 0]),
        gl.BlockedLayout([1, 16], [8, 4], [rows, groups], [1, 0]),
    )


@gluon.jit
def fetch_tile(addresses, kv_ptr, tile, UNIT: gl.constexpr, BLOCK_T: gl.constexpr):
    """Start loading a tile: scaled words int32 [BLOCK_T, 8, 16] (group 7 is empty), rotary int32 [BLOCK_T, 32].

    The words stay words until the tile is stored: taking one apart would wait for it.
    """
    LAYOUTS: gl.constexpr = tile_layouts(BLOCK_T, gl.num_warps())
    P3: gl.constexpr = LAYOUTS[0]
    R2: gl.constexpr = LAYOUTS[1]
    rows = addresses.index(tile)
    address = rows.load(gl.SliceLayout(1, gl.SliceLayout(2, P3)))
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, P3)))
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, P3)))
    row_ptr = (kv_ptr + address * UNIT).to(gl.pointer_type(gl.int32))
    mask = (address != ABSENT)[:, None] & (group < 7)[None, :]
    columns = gl.expand_dims(gl.expand_dims(group, 0) * 16, 2) + gl.expand_dims(gl.expand_dims(word, 0), 1)
    nope = gl.load(gl.expand_dims(row_ptr[:, None], 2) + columns, mask=gl.expand_dims(mask, 2), other=0)
    address = rows.load(gl.SliceLayout(1, R2))
    row_ptr = (kv_ptr + address * UNIT).to(gl.pointer_type(gl.int32))
    word = 112 + gl.arange(0, 32, layout=gl.SliceLayout(0, R2))
    rope = gl.load(row_ptr[:, None] + word[None, :], mask=(address != ABSENT)[:, None], other=0)
    return nope, rope


@gluon.constexpr_function
def rows_layout(block_t: int, num_warps: int):
    """What belongs to a row as a whole, [block_t]: each thread has the rows of which it holds words."""
    return gl.SliceLayout(1, gl.SliceLayout(2, tile_layouts(block_t, num_warps)[0]))


@gluon.jit
def store_tile(k_smem, nope, rope, scale_bytes, late, BLOCK_T: gl.constexpr):
    """Dequantise a fetched tile into its shared buffer, bfloat16 [BLOCK_T, 512].

    Args:
        nope, rope: as `fetch_tile` leaves them.
        scale_bytes: int64 [BLOCK_T], in `rows_layout`.
        late: int32 likewise, of any value, or 0. No word is taken apart before this is there: ptxas takes words apart
            as early as it can, and then waits for the first of them before it asks for the last.
    """
    LAYOUTS: gl.constexpr = tile_layouts(BLOCK_T, gl.num_warps())
    P3: gl.constexpr = LAYOUTS[0]
    K3: gl.constexpr = LAYOUTS[2]
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, P3)))[None, :]
    half = ((scale_bytes[:, None] >> (group * 8)).to(gl.int32) & 0xFF) << 7
    scale, _ = gl.broadcast(gl.expand_dims(half | (half << 16), 2), nope)
    selector, _ = gl.broadcast(gl.expand_dims(((late & -65536) | SELECTOR)[:, None], 2), nope)
    v0, v1, v2, v3 = gl.inline_asm_elementwise(
        PACKED, "=h,=h,=h,=h,r,r,r", [nope, scale, selector],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=1,
    )  # fmt: skip
    k = gl.reshape(gl.join(gl.join(v0, v2), gl.join(v1, v3)), [BLOCK_T, 8, 64])
    k = gl.convert_layout(k, K3, assert_trivial=True)
    low, high = gl.inline_asm_elementwise(
        HALVES, "=h,=h,r", [rope], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=1
    )
    r = gl.convert_layout(
        gl.reshape(gl.join(low, high), [BLOCK_T, 64]), gl.SliceLayout(1, K3), assert_trivial=True
    )
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, K3)))
    rotary = gl.expand_dims(gl.expand_dims(group == 7, 0), 2)
    k = gl.reshape(gl.where(rotary, gl.expand_dims(r, 1), k), [BLOCK_T, 512])
    k_smem.store(gl.convert_layout(k, LAYOUTS[3], assert_trivial=True))


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
def statistics(m, total, sink_ptr, head, heads, HAS_SINK: gl.constexpr, FINAL: gl.constexpr):
    """The LSE that a block writes, and what its accumulators are to be multiplied by.

    Without candidates the factor is 0, and the LSE +inf in a result and -inf (base 2) in a partial result.
    """
    none = total == 0.0
    denominator = gl.where(none, 1.0, total)
    lse = m + gl.log2(denominator)
    if FINAL:
        if HAS_SINK:
            sink = gl.load(sink_ptr + head, mask=head < heads, other=-float("inf")) * 1.4426950408889634
            denominator += gl.exp2(sink - gl.where(m == -float("inf"), 0.0, m))
        lse = gl.where(none, float("inf"), lse * 0.6931471805599453)
    else:
        lse = gl.where(none, -float("inf"), lse)
    return lse, gl.where(none, 0.0, 1.0 / denominator)


@gluon.jit
def destination(
    out_ptr, lse_ptr, row, split, num_splits, heads, stride_out_row, stride_out_head, stride_lse_row,
    FINAL: gl.constexpr,
):  # fmt: skip
    """Where a block writes: its row's output, the stride from head to head, its row's LSEs."""
    if FINAL:
        out_row_ptr = out_ptr + row * stride_out_row
        stride_head = stride_out_head
        lse_row_ptr = lse_ptr + row * stride_lse_row
    else:
        partial = row * num_splits + split
        out_row_ptr = out_ptr + partial * heads * 512
        stride_head = 512
        lse_row_ptr = lse_ptr + partial * heads
    return out_row_ptr, stride_head, lse_row_ptr


@gluon.jit
def write_result(
    q_smem, m, total, accs, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
    stride_out_row, stride_out_head, stride_lse_row,
    HAS_SINK: gl.constexpr, BLOCK_H: gl.constexpr, FINAL: gl.constexpr, LM: gl.constexpr, LA: gl.constexpr,
):  # fmt: skip
    """Write a block's result, or its partial result, from maxima, sums and the accumulator's column blocks.

    A split without tiles leaves zeros and an LSE of -inf.
    """
    BLOCKS: gl.constexpr = len(accs)
    WIDTH: gl.constexpr = 512 // BLOCKS
    head = head_first + gl.arange(0, BLOCK_H, layout=LM)
    lse, factor = statistics(m, total, sink_ptr, head, heads, HAS_SINK, FINAL)
    if FINAL:
        partial = row
        lse_row_ptr = lse_ptr + row * stride_lse_row
    else:
        partial = row * num_splits + split
        lse_row_ptr = lse_ptr + partial * heads
    gl.store(lse_row_ptr + head, lse, mask=head < heads)
    factor = gl.convert_layout(factor, LA)[:, None]
    if out_ptr.dtype.element_ty == gl.float32:
        a_head = head_first + gl.arange(0, BLOCK_H, layout=LA)
        a_row_ptr = out_ptr + (partial * heads + a_head.to(gl.int64)[:, None]) * 512
        a_column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LA.parent))[None, :]
        for b in gl.static_range(BLOCKS):
            gl.store(a_row_ptr + b * WIDTH + a_column, accs[b] * factor, mask=(a_head < heads)[:, None])
    else:
        # The queries' buffer is free: bring the result through it into rows that are stored 16 bytes at a time
        for b in gl.static_range(BLOCKS):
            q_smem.slice(b * WIDTH, WIDTH, dim=1).store((accs[b] * factor).to(gl.bfloat16))
        O2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps(), 1], [1, 0])
        o_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, O2))
        if FINAL:
            o_row_ptr = out_ptr + row * stride_out_row + o_head.to(gl.int64)[:, None] * stride_out_head
        else:
            o_row_ptr = out_ptr + (partial * heads + o_head.to(gl.int64)[:, None]) * 512
        o_column = gl.arange(0, 512, layout=gl.SliceLayout(0, O2))[None, :]
        gl.store(o_row_ptr + o_column, q_smem.load(O2), mask=(o_head < heads)[:, None])


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
