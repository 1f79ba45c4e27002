"""Rung 5 for up to 8 heads: candidates are the rows of both products, the heads are their 8 columns.

A tensor core multiplies 16 rows at least: with heads as the rows, half of them would be padding. With candidates as
the rows, bytes go from the cache through registers into the tensor core, as float16 and unscaled. A group's scale
multiplies the group's part of the score. See `_operands`.

The output sums over candidates. For that the bytes go through shared memory, as they are, and each warp takes groups
of 64 columns of all candidates. Here the group's scales go into the weights. Float16 has little range, so that the
weights of a group are divided by a power of two near the largest of them first.

No product needs `wgmma`. What keeps the larger tile's loop off sm_120 is its shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mma_v2

from kernels.sparse_mla._candidates import (
    copy_scales,
    fill_segment,
    fill_tables,
    load_slots,
    locate,
    share_of_row,
)
from kernels.sparse_mla._operands import (
    bits,
    by_group,
    columns_by_candidate,
    fetch_rows,
    grouped_layout,
    rotary_of,
    side_by_side,
    values_of,
)
from kernels.sparse_mla._overlap import release_successor, wait_for_predecessor
from kernels.sparse_mla._result import destination, statistics


@gluon.constexpr_function
def result_layout(warps: int):
    """The result [8, 512]: a lane has 8 neighbouring columns of two heads."""
    log_warps = warps.bit_length() - 1
    registers = bits(0, 3, 1, 2) + [[1, 0]] + bits(6 + log_warps, 3 - log_warps, 1, 2)
    lanes = bits(1, 2, 0, 2) + bits(3, 3, 1, 2)
    return gl.DistributedLinearLayout(registers, lanes, bits(6, log_warps, 1, 2), [], [8, 512])


@gluon.jit
def power_near(x):
    """The power of two at or below each x >= 0, and its inverse: both normal numbers, so neither is 0 or infinite."""
    exponent = gl.minimum(gl.maximum(x.to(gl.int32, bitcast=True) & 0x7F800000, 1 << 23), 253 << 23)
    return exponent.to(gl.float32, bitcast=True), ((254 << 23) - exponent).to(gl.float32, bitcast=True)


@gluon.jit
def store_queries(q, q_smem, unit_smem, scale_log2):
    """Leave the queries bfloat16 [8, 512] in shared memory: 448 columns as float16, each head divided by a power of
    two near its largest entry, the rotary columns bit by bit. `unit_smem` gets the factor of a head's scores.
    """
    LQ: gl.constexpr = q.type.layout
    scaled = (gl.arange(0, 512, layout=gl.SliceLayout(0, LQ)) < 448)[None, :]
    values = gl.where(scaled, q.to(gl.float32), 0.0)
    power, inverse = power_near(gl.max(gl.abs(values), 1))
    halves = (values * inverse[:, None]).to(gl.float16)
    q_smem.store(gl.where(scaled, halves, q.to(gl.float16, bitcast=True)))
    unit_smem.store(power * scale_log2)


@gluon.jit
def scale_of(scale_bytes, group):
    """Byte `group` of each int64 as a power of two, float32; byte 0 stands for 0."""
    return (((scale_bytes >> (8 * group)).to(gl.int32) & 0xFF) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def scores_of(q_smem, unit_smem, words, rotary, scale_bytes, scale_log2, S2: gl.constexpr):
    """Scores of a tile's candidates in base 2, float32 [candidates, 8]."""
    ROWS: gl.constexpr = rotary.shape[0]
    zeros = gl.zeros([ROWS, 8], gl.float32, layout=S2)
    total = zeros
    for g in gl.static_range(7):
        k = values_of(words[g], ROWS, gl.DotOperandLayout(0, S2, 16))
        q = q_smem.slice(64 * g, 64, dim=1).permute((1, 0)).load(gl.DotOperandLayout(1, S2, 16))
        total += mma_v2(k, q, zeros) * scale_of(scale_bytes, g)[:, None]
    k = gl.convert_layout(rotary, gl.DotOperandLayout(0, S2, 8), assert_trivial=True)
    q = q_smem.slice(448, 64, dim=1).permute((1, 0)).load(gl.DotOperandLayout(1, S2, 8))
    q = q.to(gl.bfloat16, bitcast=True)
    return total * unit_smem.load(gl.SliceLayout(0, S2))[None, :] + mma_v2(k, q, zeros) * scale_log2


@gluon.jit
def score_tile(
    handed, q_smem, unit_smem, words, scale_bytes, biases, i, scale_log2,
    BLOCK_T: gl.constexpr, S2: gl.constexpr,
):  # fmt: skip
    """Leave tile `i` in shared memory as the second product takes it: bytes, weights, scales.

    Candidates r and r + 8 of every 16 are neighbours there. Each warp's weights refer to the warp's own maximum, so
    that one barrier is enough.
    """
    k_smem, k_rotary_smem, weight_smem, scale_smem, max_smem = handed
    WARPS: gl.constexpr = gl.num_warps()
    LS: gl.constexpr = gl.SliceLayout(1, S2)
    E2: gl.constexpr = gl.BlockedLayout([4, 1], [1, 32], [2, WARPS // 2], [0, 1])
    bias = biases.index(i).load(LS)
    rotary = rotary_of(words[7], BLOCK_T)
    product = scores_of(q_smem, unit_smem, words, rotary, scale_bytes.index(i).load(LS), scale_log2, S2)
    # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
    by_warp = gl.reshape(gl.where((bias == 0.0)[:, None], product, -float("inf")), [WARPS, 16, 8])
    largest = gl.max(by_warp, 1)
    reference = gl.where(largest == -float("inf"), 0.0, largest)
    weights = gl.reshape(gl.exp2(by_warp - gl.expand_dims(reference, 1)), [BLOCK_T, 8])
    k_smem.store(by_group(words))
    k_rotary_smem.store(side_by_side(rotary, BLOCK_T, 64))
    max_smem.store(largest)
    pairs = gl.reshape(side_by_side(weights, BLOCK_T, 8), [BLOCK_T // 2, 2, 8])
    weight_smem.store(gl.permute(pairs, (0, 2, 1)))
    group = gl.arange(0, 8, layout=gl.SliceLayout(1, E2))[:, None]
    scales = scale_of(scale_bytes.index(i).load(gl.SliceLayout(0, E2))[None, :], group)
    scales = gl.permute(gl.reshape(scales, [8, BLOCK_T // 16, 2, 8]), (0, 1, 3, 2))
    scale_smem.store(gl.reshape(scales, [8, BLOCK_T]))


@gluon.jit
def load_weights(weight_smem, BLOCK_T: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights float32 [BLOCK_T, 8] from their pairs [BLOCK_T // 2, 8, 2], in `LAYOUT`."""
    like = gl.reshape(gl.zeros([BLOCK_T, 8], gl.float32, layout=LAYOUT), [BLOCK_T // 2, 2, 8])
    pairs = weight_smem.load(gl.permute(like, (0, 2, 1)).type.layout)
    weights = gl.reshape(gl.permute(pairs, (0, 2, 1)), [BLOCK_T, 8])
    return gl.convert_layout(weights, LAYOUT, assert_trivial=True)


@gluon.jit
def add_tile(handed, acc, acc_rotary, m, total, BLOCK_T: gl.constexpr, A3: gl.constexpr, R2: gl.constexpr):
    """Add a tile's candidates to the accumulators [8 groups, 64, 8 heads] and [64 rotary, 8 heads].

    Returns:
        Both accumulators, the new maximum (base 2) and the new sum of the weights, [8 heads].
    """
    k_smem, k_rotary_smem, weight_smem, scale_smem, max_smem = handed
    WARPS: gl.constexpr = gl.num_warps()
    B3: gl.constexpr = gl.DotOperandLayout(1, A3, 2)
    P2: gl.constexpr = gl.SliceLayout(0, B3)
    LM: gl.constexpr = gl.SliceLayout(0, P2)
    weights = load_weights(weight_smem, BLOCK_T, P2)
    by_warp = gl.reshape(weights, [WARPS, 16, 8])
    W3: gl.constexpr = by_warp.type.layout
    largest = max_smem.load(gl.SliceLayout(1, W3))
    m_new = gl.maximum(m, gl.convert_layout(gl.max(largest, 0), LM))
    reference = gl.where(m_new == -float("inf"), 0.0, m_new)
    rescale = gl.exp2(m - reference)
    by_head = gl.convert_layout(reference, gl.SliceLayout(0, gl.SliceLayout(1, W3)))
    by_warp = by_warp * gl.expand_dims(gl.exp2(largest - by_head[None, :]), 1)
    weights = gl.convert_layout(gl.reshape(by_warp, [BLOCK_T, 8]), P2, assert_trivial=True)
    total = total * rescale + gl.convert_layout(gl.sum(weights, 0), LM)

    scaled = gl.expand_dims(weights, 0) * gl.expand_dims(scale_smem.load(gl.SliceLayout(2, B3)), 2)
    # A tile far below the row's maximum has weights that vanish: the power stays a number, and so do they
    power, inverse = power_near(gl.max(scaled, 1))
    p = (scaled * gl.expand_dims(inverse, 1)).to(gl.float16)
    v = columns_by_candidate(k_smem.load(grouped_layout(BLOCK_T, WARPS)), BLOCK_T)
    v = gl.convert_layout(v, gl.DotOperandLayout(0, A3, 2), assert_trivial=True)
    part = mma_v2(v, p, gl.zeros([8, 64, 8], gl.float32, layout=A3))
    part *= gl.expand_dims(gl.convert_layout(power, gl.SliceLayout(1, A3)), 1)
    factor = gl.convert_layout(rescale, gl.SliceLayout(0, gl.SliceLayout(0, A3)))
    acc = acc * gl.expand_dims(gl.expand_dims(factor, 0), 0) + part

    v = k_rotary_smem.permute((1, 0)).load(gl.DotOperandLayout(0, R2, 2))
    p = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(1, R2, 2), assert_trivial=True)
    factor = gl.convert_layout(rescale, gl.SliceLayout(0, R2))
    return acc, mma_v2(v, p, acc_rotary * factor[None, :]), m_new, total


@gluon.jit
def write_columns(
    acc, acc_rotary, factor, out_row_ptr, stride_head, head_first, heads, A3: gl.constexpr, R2: gl.constexpr
):
    """Write the result, or a partial result, from the accumulators and a factor for each head."""
    DTYPE: gl.constexpr = out_row_ptr.dtype.element_ty
    by_head = gl.convert_layout(factor, gl.SliceLayout(0, gl.SliceLayout(0, A3)))
    x = (acc * gl.expand_dims(gl.expand_dims(by_head, 0), 0)).to(DTYPE)
    # Rows of the product back to columns of the row: see `columns_by_candidate`
    x = gl.permute(gl.reshape(x, [8, 2, 2, 2, 8, 8]), (5, 0, 4, 1, 2, 3))
    O2: gl.constexpr = result_layout(gl.num_warps())
    x = gl.convert_layout(gl.reshape(x, [8, 512]), O2, assert_trivial=True)
    head = head_first + gl.arange(0, 8, layout=gl.SliceLayout(1, O2))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, O2))
    mask = (head < heads)[:, None] & (column < 448)[None, :]
    gl.store(out_row_ptr + head.to(gl.int64)[:, None] * stride_head + column[None, :], x, mask=mask)

    by_head = gl.convert_layout(factor, gl.SliceLayout(0, R2))
    x = (acc_rotary * by_head[None, :]).to(DTYPE)
    head = head_first + gl.arange(0, 8, layout=gl.SliceLayout(0, R2))
    column = 448 + gl.arange(0, 64, layout=gl.SliceLayout(1, R2))
    gl.store(
        out_row_ptr + head.to(gl.int64)[None, :] * stride_head + column[:, None],
        x,
        mask=(head < heads)[None, :],
    )


@gluon.jit
def few_heads_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2, release,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, ONE_TILE: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """ONE_TILE: no share is longer than a tile, and there is no loop."""
    wait_for_predecessor(release, OVERLAP)
    WARPS: gl.constexpr = gl.num_warps()
    TILES: gl.constexpr = SEGMENT // BLOCK_T
    T1: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    Q2: gl.constexpr = gl.BlockedLayout([1, 16], [1, 32], [WARPS, 1], [1, 0])
    S2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    A3: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    R2: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, WARPS // 4], [16, 8])
    LM: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, gl.DotOperandLayout(1, A3, 2)))
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])

    row = gl.program_id(0).to(gl.int64)
    head_first = gl.program_id(1) * 8
    length, extra_length, tiles, first, last = share_of_row(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, BLOCK_T,
        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip
    # A split without tiles reads no query: to it, there are no heads
    live_heads = gl.where(first < last, heads, 0)

    address_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    bytes_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    bias_smem = gl.allocate_shared_memory(gl.float32, [SEGMENT], TABLE)
    # The same tables by tile: a tile's row can be chosen at run time
    addresses = address_smem._reinterpret(gl.int64, [TILES, BLOCK_T], TABLE)
    scale_bytes = bytes_smem._reinterpret(gl.int64, [TILES, BLOCK_T], TABLE)
    biases = bias_smem._reinterpret(gl.float32, [TILES, BLOCK_T], TABLE)
    q_smem = gl.allocate_shared_memory(gl.float16, [8, 512], SWIZZLED)
    unit_smem = gl.allocate_shared_memory(gl.float32, [8], TABLE)
    # What the first product hands over to the second: bytes, rotary columns, weights, scales, the warps' maxima
    handed = (
        gl.allocate_shared_memory(gl.int32, [8, BLOCK_T, 16], CUBE),
        gl.allocate_shared_memory(gl.bfloat16, [BLOCK_T, 64], SWIZZLED),
        gl.allocate_shared_memory(gl.float32, [BLOCK_T // 2, 8, 2], CUBE),
        gl.allocate_shared_memory(gl.float32, [8, BLOCK_T], PLAIN),
        gl.allocate_shared_memory(gl.float32, [WARPS, 8], PLAIN),
    )

    row_indices_ptr = indices_ptr + row * stride_indices
    extra_row_indices_ptr = extra_indices_ptr + row * stride_extra_indices
    slot = load_slots(
        row_indices_ptr, length, extra_row_indices_ptr, extra_length, first, last, tiles,
        HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    head = head_first + gl.arange(0, 8, layout=gl.SliceLayout(1, Q2))
    q_row_ptr = q_ptr + row * stride_q_row + head.to(gl.int64)[:, None] * stride_q_head
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, Q2))[None, :]
    q = gl.load(q_row_ptr + column, mask=(head < live_heads)[:, None], other=0.0)
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    fill_tables(address_smem, bias_smem, slot, token, UNIT)
    copy_scales(bytes_smem, kv_ptr, slot, scale)
    words = fetch_rows(addresses, kv_ptr, 0, UNIT, BLOCK_T)
    store_queries(q, q_smem, unit_smem, scale_log2)

    m = gl.full([8], -float("inf"), gl.float32, layout=LM)
    total = gl.full([8], 0.0, gl.float32, layout=LM)
    acc = gl.zeros([8, 64, 8], gl.float32, layout=A3)
    acc_rotary = gl.zeros([64, 8], gl.float32, layout=R2)
    if ONE_TILE:
        async_copy.wait_group(0)
        score_tile(handed, q_smem, unit_smem, words, scale_bytes, biases, 0, scale_log2, BLOCK_T, S2)
        acc, acc_rotary, m, total = add_tile(handed, acc, acc_rotary, m, total, BLOCK_T, A3, R2)
    else:
        for tile in range(first, last):
            i = (tile - first) % TILES
            async_copy.wait_group(0)
            score_tile(handed, q_smem, unit_smem, words, scale_bytes, biases, i, scale_log2, BLOCK_T, S2)
            if i == TILES - 1:
                slot, scale = fill_segment(
                    address_smem, bias_smem, kv_ptr, extra_kv_ptr, row_indices_ptr, extra_row_indices_ptr,
                    length, extra_length, tile + 1, last, tiles, stride_page, stride_extra_page,
                    PAGE_SIZE, EXTRA_PAGE_SIZE, UNIT, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
                )  # fmt: skip
                copy_scales(bytes_smem, kv_ptr, slot, scale)
            # Past the last tile the tables hold absent candidates, and nothing is fetched
            words = fetch_rows(addresses, kv_ptr, (i + 1) % TILES, UNIT, BLOCK_T)
            acc, acc_rotary, m, total = add_tile(handed, acc, acc_rotary, m, total, BLOCK_T, A3, R2)

    release_successor(release, OVERLAP)
    head = head_first + gl.arange(0, 8, layout=LM)
    lse, factor = statistics(m, total, sink_ptr, head, heads, HAS_SINK, FINAL)
    out_row_ptr, stride_head, lse_row_ptr = destination(
        out_ptr, lse_ptr, row, gl.program_id(2), gl.num_programs(2), heads,
        stride_out_row, stride_out_head, stride_lse_row, FINAL,
    )  # fmt: skip
    gl.store(lse_row_ptr + head, lse, mask=head < heads)
    write_columns(acc, acc_rotary, factor, out_row_ptr, stride_head, head_first, heads, A3, R2)
