"""Rung 5 on sm_90 in wide tiles: a program takes up to 128 candidates at once.

`wgmma` reads the queries from shared memory for every tile that they meet, whatever the tile's width: scores against
32 candidates take nearly as long as against 64. So a program whose share of a row is short takes it as one tile.
All its bytes are asked for at once; there is one product for the scores, one softmax, and the output is multiplied
in two halves, of which one is written while the other is computed.

A share is counted in units of 16 candidates, the depth of one `wgmma` step, so that splits come out even: 640
candidates in 8 splits are 80 each. Up to 8 units are one tile; up to 10 are a tile and a rest, whose bytes wait in
registers; a longer share is a loop over tiles.

The queries of a program are as many bytes as its candidates. Half of them are asked for while the indices are on
their way, the other half behind the candidates' bytes, which are needed first.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.sparse_mla._candidates import (
    ABSENT,
    copy_scales,
    fill_tables,
    load_slots,
    locate,
    packed,
    share_of_row,
)
from kernels.sparse_mla._overlap import release_successor, wait_for_predecessor
from kernels.sparse_mla._result import destination, statistics, write_result
from kernels.sparse_mla._rows import fetch_tile, rows_layout, store_tile

# Candidates of a unit, and units of a tile
UNIT_T = gl.constexpr(16)
TILE_UNITS = gl.constexpr(8)
# Candidates whose bytes are dequantised at a time, and of the last such chunk of a share
CHUNK_T = gl.constexpr(64)
SMALL_T = gl.constexpr(32)
# Queries that are asked for at a time: columns of [heads, 512]
HALF = gl.constexpr(256)


@gluon.jit
def ask_for_queries(q_smem, q_row_ptr, live, COLUMN: gl.constexpr, Q2: gl.constexpr):
    """Start copying HALF columns of the queries of all heads; zeros for heads that are not there."""
    column = COLUMN + gl.arange(0, HALF, layout=gl.SliceLayout(0, Q2))[None, :]
    async_copy.async_copy_global_to_shared(
        q_smem.slice(COLUMN, HALF, dim=1), q_row_ptr + column, mask=live[:, None]
    )
    async_copy.commit_group()


@gluon.jit
def fetch_chunks(
    addresses, scale_addresses, kv_ptr, FIRST: gl.constexpr, COUNT: gl.constexpr, UNIT: gl.constexpr,
    CHUNK: gl.constexpr,
):  # fmt: skip
    """Start loading COUNT chunks of a table from FIRST on: the words of each, as `fetch_tile` leaves them, and its
    rows' scale bytes, int64. Each thread has all that it needs, so that no other is waited for.
    """
    chunks = ()
    for c in gl.static_range(FIRST, FIRST + COUNT):
        address = scale_addresses.index(c).load(rows_layout(CHUNK, gl.num_warps()))
        scale_ptr = kv_ptr + address
        if UNIT >= 8:
            scale_ptr = scale_ptr.to(gl.pointer_type(gl.int64))
            scale_bytes = gl.load(scale_ptr, mask=address != ABSENT, other=0)
        else:
            scale_ptr = scale_ptr.to(gl.pointer_type(gl.int32))
            low = gl.load(scale_ptr, mask=address != ABSENT, other=0)
            high = gl.load(scale_ptr + 1, mask=address != ABSENT, other=0)
            scale_bytes = packed(low, high)
        nope, rope = fetch_tile(addresses, kv_ptr, c, UNIT, CHUNK)
        chunks += ((nope, rope, scale_bytes),)
    return chunks


@gluon.jit
def store_chunks(k_smem, chunks, ROW: gl.constexpr, CHUNK: gl.constexpr):
    """Dequantise chunks into the buffer, from row ROW on."""
    for c in gl.static_range(len(chunks)):
        nope, rope, scale_bytes = chunks[c]
        late = gl.zeros_like(scale_bytes).to(gl.int32)
        store_tile(k_smem.slice(ROW + c * CHUNK, CHUNK, dim=0), nope, rope, scale_bytes, late, CHUNK)


@gluon.jit
def fetch_halves(addresses, kv_ptr, FIRST: gl.constexpr, COUNT: gl.constexpr, UNIT: gl.constexpr):
    """Start loading halves of a tile in a loop: the words of each, as `fetch_tile` leaves them."""
    words = ()
    for c in gl.static_range(FIRST, FIRST + COUNT):
        words += (fetch_tile(addresses, kv_ptr, c, UNIT, CHUNK_T),)
    return words


@gluon.jit
def store_halves(k_smem, words, scales):
    """Dequantise the halves of a tile into the buffer."""
    for c in gl.static_range(len(words)):
        scale_bytes = scales.index(c).load(rows_layout(CHUNK_T, gl.num_warps()))
        half = k_smem.slice(c * CHUNK_T, CHUNK_T, dim=0)
        store_tile(half, words[c][0], words[c][1], scale_bytes, scale_bytes.to(gl.int32), CHUNK_T)


@gluon.jit
def score(q_smem, k_smem, BLOCK_H: gl.constexpr, ROWS: gl.constexpr, S2: gl.constexpr):
    """Start multiplying the queries by the first ROWS rows of the buffer."""
    fence_async_shared()
    zeros = gl.zeros([BLOCK_H, ROWS], gl.float32, layout=S2)
    return warpgroup_mma(
        q_smem, k_smem.slice(0, ROWS, dim=0).permute((1, 0)), zeros, use_acc=False, is_async=True
    )


@gluon.jit
def over_groups(values, COMBINE: gl.constexpr, BLOCK_H: gl.constexpr):
    """Maxima or sums over the candidates of each warp group: [heads, candidates] -> [groups, heads]."""
    GROUPS: gl.constexpr = gl.num_warps() // 4
    parts = gl.reshape(values, [BLOCK_H, GROUPS, values.shape[1] // GROUPS])
    if COMBINE == "max":
        part = gl.max(parts, 2)
    else:
        part = gl.sum(parts, 2)
    return gl.permute(part, (1, 0))


@gluon.jit
def both_groups(table, BLOCK_H: gl.constexpr, LM: gl.constexpr):
    """What the two warp groups left in a table [2, heads]."""
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    rows = table._reinterpret(gl.float32, [2, BLOCK_H], TABLE)
    return rows.index(0).load(LM), rows.index(1).load(LM)


@gluon.jit
def weigh(product, bias, m, max_smem, sum_smem, p_smem, scale_log2, BLOCK_H: gl.constexpr, LM: gl.constexpr):
    """Leave a tile's weights in shared memory, bfloat16 [heads, candidates], and their sums in `sum_smem`.

    Each warp group has half of the candidates, and the groups meet twice: over the maxima, and over weights and sums.

    Returns:
        The new maximum (base 2), and the factor of what was summed before.
    """
    # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
    scores = gl.where((bias == 0.0)[None, :], product * scale_log2, -float("inf"))
    max_smem.store(over_groups(scores, "max", BLOCK_H))
    one, other = both_groups(max_smem, BLOCK_H, LM)
    m_new = gl.maximum(m, gl.maximum(one, other))
    reference = gl.where(m_new == -float("inf"), 0.0, m_new)
    weights = gl.exp2(scores - reference[:, None])
    p_smem.store(weights.to(gl.bfloat16))
    sum_smem.store(over_groups(weights, "sum", BLOCK_H))
    fence_async_shared()
    return m_new, gl.exp2(m - reference)


@gluon.jit
def add_unit(p_smem, k_smem, acc, u: gl.constexpr, b: gl.constexpr, WIDTH: gl.constexpr, FRESH: gl.constexpr):
    """Start adding the weights of unit `u` times its rows to the accumulator of column block `b`."""
    weights = p_smem.slice(UNIT_T * u, UNIT_T, dim=1)
    rows = k_smem.slice(UNIT_T * u, UNIT_T, dim=0).slice(b * WIDTH, WIDTH, dim=1)
    return warpgroup_mma(weights, rows, acc, use_acc=u > 0 or not FRESH, is_async=True)


@gluon.jit
def add_outputs(p_smem, k_smem, accs, UNITS: gl.constexpr, FRESH: gl.constexpr, BY_UNIT: gl.constexpr):
    """Start adding the first UNITS units to the accumulators of all column blocks.

    Block by block, so that the first is ready early; or unit BY_UNIT, so that the first rows are free early.
    """
    BLOCKS: gl.constexpr = len(accs)
    out = accs
    if BY_UNIT:
        for u in gl.static_range(UNITS):
            longer = ()
            for b in gl.static_range(BLOCKS):
                longer += (add_unit(p_smem, k_smem, out[b], u, b, 512 // BLOCKS, FRESH),)
            out = longer
    else:
        out = ()
        for b in gl.static_range(BLOCKS):
            acc = accs[b]
            for u in gl.static_range(UNITS):
                acc = add_unit(p_smem, k_smem, acc, u, b, 512 // BLOCKS, FRESH)
            out += (acc,)
    return out


@gluon.jit
def write_blocks(
    q_smem, m, total, accs, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads, release,
    stride_out_row, stride_out_head, stride_lse_row, PENDING: gl.constexpr,
    HAS_SINK: gl.constexpr, BLOCK_H: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
    LM: gl.constexpr, LA: gl.constexpr,
):  # fmt: skip
    """Write the result, or the partial result, one column block after the other, each as soon as it is there.

    PENDING: products of each accumulator that may still be on their way. Empty shares as in `write_result`.
    """
    BLOCKS: gl.constexpr = len(accs)
    WIDTH: gl.constexpr = 512 // BLOCKS
    out_row_ptr, stride_head, lse_row_ptr = destination(
        out_ptr, lse_ptr, row, split, num_splits, heads, stride_out_row, stride_out_head, stride_lse_row, FINAL
    )  # fmt: skip
    head = head_first + gl.arange(0, BLOCK_H, layout=LM)
    lse, factor = statistics(m, total, sink_ptr, head, heads, HAS_SINK, FINAL)
    gl.store(lse_row_ptr + head, lse, mask=head < heads)
    factor = gl.convert_layout(factor, LA)[:, None]
    O2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [gl.num_warps(), 1], [1, 0])
    o_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, O2))
    o_row_ptr = out_row_ptr + o_head.to(gl.int64)[:, None] * stride_head
    o_column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, O2))[None, :]
    for b in gl.static_range(BLOCKS):
        acc = warpgroup_mma_wait((BLOCKS - 1 - b) * PENDING, deps=[accs[b]])
        if b == 0:
            release_successor(release, OVERLAP)
        # The queries' buffer is free: through it, rows are stored 16 bytes at a time
        block = q_smem.slice(b * WIDTH, WIDTH, dim=1)
        block.store((acc * factor).to(gl.bfloat16))
        gl.store(o_row_ptr + b * WIDTH + o_column, block.load(O2), mask=(o_head < heads)[:, None])


@gluon.jit
def wide_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, extra_kv_ptr, extra_indices_ptr, extra_length_ptr,
    sink_ptr, out_ptr, lse_ptr,
    heads, topk, extra_topk, scale_log2, release,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    stride_extra_page, stride_extra_indices, stride_extra_length,
    stride_out_row, stride_out_head, stride_lse_row,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr,
    BLOCK_H: gl.constexpr, SHARE: gl.constexpr, FINAL: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """SHARE: units of the largest share if they are one tile, or a tile and a rest; 0 for a loop over tiles."""
    wait_for_predecessor(release, OVERLAP)
    WARPS: gl.constexpr = gl.num_warps()
    Q2: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    T1: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    TABLE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PAIR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    SMEM: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    # Units of the first tile and of the rest behind it
    UNITS: gl.constexpr = SHARE if SHARE > 0 and SHARE < TILE_UNITS else TILE_UNITS
    REST: gl.constexpr = SHARE - UNITS if SHARE > TILE_UNITS else 0
    ROWS: gl.constexpr = 64 if UNITS <= 4 else 128
    # Rows are fetched in chunks of 64; the last ones may be a chunk of 32
    CHUNKS: gl.constexpr = (UNITS + 1) // 4
    LAST_CHUNKS: gl.constexpr = 1 if UNITS > 4 * CHUNKS else 0
    SEGMENT: gl.constexpr = 2 * ROWS if REST > 0 else ROWS
    BLOCKS: gl.constexpr = 2 if SHARE > 0 else 1
    S2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS // 4], [16, ROWS // (WARPS // 4), 16])
    A2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, WARPS // 4], [16, 256 // BLOCKS, 16])
    LM: gl.constexpr = gl.SliceLayout(1, S2)
    LA: gl.constexpr = gl.SliceLayout(1, A2)
    row = gl.program_id(0).to(gl.int64)
    split = gl.program_id(2)
    num_splits = gl.num_programs(2)
    head_first = gl.program_id(1) * BLOCK_H
    length, extra_length, main_units, first, last = share_of_row(
        length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, UNIT_T,
        HAS_LENGTH, HAS_EXTRA, HAS_EXTRA_LENGTH,
    )  # fmt: skip
    # A split without candidates reads no query: to it, there are no heads
    live_heads = gl.where(first < last, heads, 0)

    address_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    scale_smem = gl.allocate_shared_memory(gl.int64, [SEGMENT], TABLE)
    bias_smem = gl.allocate_shared_memory(gl.float32, [SEGMENT], TABLE)
    # The same tables by chunk
    addresses = address_smem._reinterpret(gl.int64, [SEGMENT // CHUNK_T, CHUNK_T], TABLE)
    scales = scale_smem._reinterpret(gl.int64, [SEGMENT // CHUNK_T, CHUNK_T], TABLE)
    small_addresses = address_smem._reinterpret(gl.int64, [SEGMENT // SMALL_T, SMALL_T], TABLE)
    small_scales = scale_smem._reinterpret(gl.int64, [SEGMENT // SMALL_T, SMALL_T], TABLE)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, 512], SMEM)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [ROWS, 512], SMEM)
    # Swizzled over 32 bytes, so that a unit of 16 weights is a slice of it
    p_smem = gl.allocate_shared_memory(gl.bfloat16, [BLOCK_H, ROWS], gl.NVMMASharedLayout(32, 16, 2))
    max_smem = gl.allocate_shared_memory(gl.float32, [2, BLOCK_H], PAIR)
    sum_smem = gl.allocate_shared_memory(gl.float32, [2, BLOCK_H], PAIR)

    row_indices_ptr = indices_ptr + row * stride_indices
    extra_row_indices_ptr = extra_indices_ptr + row * stride_extra_indices
    end = last
    if SHARE == 0:
        end = gl.minimum(last, first + UNITS)
    slot = load_slots(
        row_indices_ptr, length, extra_row_indices_ptr, extra_length, first, end, main_units,
        HAS_EXTRA, UNIT_T, SEGMENT, T1,
    )  # fmt: skip
    q_head = head_first + gl.arange(0, BLOCK_H, layout=gl.SliceLayout(1, Q2))
    q_row_ptr = q_ptr + row * stride_q_row + q_head.to(gl.int64)[:, None] * stride_q_head
    ask_for_queries(q_smem, q_row_ptr, q_head < live_heads, 0, Q2)
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, main_units,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, UNIT_T, SEGMENT, T1,
    )  # fmt: skip
    fill_tables(address_smem, bias_smem, slot, token, UNIT)
    if SHARE > 0:
        # Where the scales lie. Through this table a thread finds those of its rows
        scale_smem.store(gl.where(slot >= 0, scale, ABSENT))
        chunks = fetch_chunks(addresses, scales, kv_ptr, 0, CHUNKS, UNIT, CHUNK_T)
        small = (small_addresses, small_scales, kv_ptr)
        last_chunks = fetch_chunks(*small, 2 * CHUNKS, LAST_CHUNKS, UNIT, SMALL_T)
        if REST > 0:
            rest = fetch_chunks(*small, ROWS // SMALL_T, 1, UNIT, SMALL_T)
    else:
        copy_scales(scale_smem, kv_ptr, slot, scale)
        words = fetch_halves(addresses, kv_ptr, 0, 2, UNIT)
    ask_for_queries(q_smem, q_row_ptr, q_head < live_heads, HALF, Q2)

    m = gl.full([BLOCK_H], -float("inf"), gl.float32, layout=LM)
    accs = (gl.zeros([BLOCK_H, 512 // BLOCKS], gl.float32, layout=A2),) * BLOCKS
    if SHARE > 0:
        store_chunks(k_smem, chunks, 0, CHUNK_T)
        store_chunks(k_smem, last_chunks, CHUNKS * CHUNK_T, SMALL_T)
        bias = bias_smem.slice(0, ROWS, dim=0).load(gl.SliceLayout(0, S2))
        async_copy.wait_group(0)
        product = warpgroup_mma_wait(0, deps=[score(q_smem, k_smem, BLOCK_H, ROWS, S2)])
        m, _ = weigh(product, bias, m, max_smem, sum_smem, p_smem, scale_log2, BLOCK_H, LM)
        accs = add_outputs(p_smem, k_smem, accs, UNITS, True, REST > 0)
        one, other = both_groups(sum_smem, BLOCK_H, LM)
        total = one + other
        if REST > 0:
            RS2: gl.constexpr = gl.NVMMADistributedLayout(
                [3, 0], [4, WARPS // 4], [16, 64 // (WARPS // 4), 16]
            )
            RLM: gl.constexpr = gl.SliceLayout(1, RS2)
            # The rest goes where the first rows were, as soon as they are multiplied. Rows behind it have no weight
            accs = warpgroup_mma_wait((UNITS - SMALL_T // UNIT_T) * BLOCKS, deps=accs)
            store_chunks(k_smem, rest, 0, SMALL_T)
            accs = warpgroup_mma_wait(0, deps=accs)
            bias = bias_smem.slice(ROWS, 64, dim=0).load(gl.SliceLayout(0, RS2))
            product = warpgroup_mma_wait(0, deps=[score(q_smem, k_smem, BLOCK_H, 64, RS2)])
            m, rescale = weigh(
                product, bias, gl.convert_layout(m, RLM), max_smem, sum_smem, p_smem.slice(0, 64, dim=1), scale_log2,
                BLOCK_H, RLM,
            )  # fmt: skip
            factor = gl.convert_layout(rescale, LA)[:, None]
            accs = add_outputs(p_smem, k_smem, (accs[0] * factor, accs[1] * factor), REST, False, False)
            one, other = both_groups(sum_smem, BLOCK_H, RLM)
            total = gl.convert_layout(total, RLM) * rescale + one + other
            m = gl.convert_layout(m, LM)
            total = gl.convert_layout(total, LM)
    else:
        # The bytes of the next tile are asked for in two parts: the scores' registers are free for the second
        total = gl.full([BLOCK_H], 0.0, gl.float32, layout=LM)
        tile_first = first + UNITS
        slot = load_slots(
            row_indices_ptr, length, extra_row_indices_ptr, extra_length,
            tile_first, gl.minimum(last, tile_first + UNITS), main_units, HAS_EXTRA, UNIT_T, SEGMENT, T1,
        )  # fmt: skip
        product = gl.zeros([BLOCK_H, ROWS], gl.float32, layout=S2)
        for _ in range(first, last, UNITS):
            async_copy.wait_group(0)
            store_halves(k_smem, words, scales)
            bias = bias_smem.load(gl.SliceLayout(0, S2))
            fence_async_shared()
            product = warpgroup_mma(q_smem, k_smem.permute((1, 0)), product, use_acc=False, is_async=True)
            token, scale = locate(
                slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, tile_first, main_units,
                PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, UNIT_T, SEGMENT, T1,
            )  # fmt: skip
            fill_tables(address_smem, bias_smem, slot, token, UNIT)
            copy_scales(scale_smem, kv_ptr, slot, scale)
            tile_first += UNITS
            slot = load_slots(
                row_indices_ptr, length, extra_row_indices_ptr, extra_length,
                tile_first, gl.minimum(last, tile_first + UNITS), main_units, HAS_EXTRA, UNIT_T, SEGMENT, T1,
            )  # fmt: skip
            words = fetch_halves(addresses, kv_ptr, 0, 1, UNIT)
            product = warpgroup_mma_wait(0, deps=[product])
            m, rescale = weigh(product, bias, m, max_smem, sum_smem, p_smem, scale_log2, BLOCK_H, LM)
            words += fetch_halves(addresses, kv_ptr, 1, 1, UNIT)
            acc = accs[0] * gl.convert_layout(rescale, LA)[:, None]
            pending = add_outputs(p_smem, k_smem, (acc,), UNITS, False, False)
            one, other = both_groups(sum_smem, BLOCK_H, LM)
            total = total * rescale + one + other
            accs = (warpgroup_mma_wait(0, deps=[pending[0]]),)
        # An empty share has not waited for its queries, whose buffer the result goes through
        async_copy.wait_group(0)

    if out_ptr.dtype.element_ty == gl.float32:
        ready = ()
        for b in gl.static_range(BLOCKS):
            ready += (warpgroup_mma_wait(0, deps=[accs[b]]),)
        release_successor(release, OVERLAP)
        write_result(
            q_smem, m, total, ready, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads,
            stride_out_row, stride_out_head, stride_lse_row, HAS_SINK, BLOCK_H, FINAL, LM, LA,
        )  # fmt: skip
    else:
        write_blocks(
            q_smem, m, total, accs, sink_ptr, out_ptr, lse_ptr, row, split, num_splits, head_first, heads, release,
            stride_out_row, stride_out_head, stride_lse_row, REST if REST > 0 else UNITS,
            HAS_SINK, BLOCK_H, FINAL, OVERLAP, LM, LA,
        )  # fmt: skip
