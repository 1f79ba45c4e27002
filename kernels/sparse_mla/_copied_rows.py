"""Rows that were copied to shared memory whole, read from there as operands, in Gluon.

The bytes lie as they did in the cache, rows `PITCH` apart. Both products read them in the order that the tensor core
wants (see `_operands`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._addresses import load_2_words, load_4_words, load_byte
from kernels.sparse_mla._dequantize import HALVES
from kernels.sparse_mla._layouts import bits, log2

ROW_BYTES = gl.constexpr(576)
# 96 more than a multiple of the 128 bytes of all banks: runs of 32 bytes of four rows lie in different ones
PITCH = gl.constexpr(608)


@gluon.jit
def row_offset(j):
    """Where the row of candidate j of a tile lies. Rows are in order but for the two lowest bits, which are swapped:
    so two neighbours' runs of 64 bytes are in different banks, too.
    """
    return ((j & -4) | ((j & 1) << 1) | ((j & 2) >> 1)) * PITCH


@gluon.constexpr_function
def quarters_layout(rows: int):
    """[2, rows, 4]: half of the warps all rows, a warp 16 of them, four lanes a row."""
    log_warps = log2(rows) - 4
    return gl.DistributedLinearLayout(
        [[0, 8, 0]],
        bits(0, 2, 2, 3) + bits(0, 3, 1, 3),
        bits(4, log_warps, 1, 3) + [[1, 0, 0]],
        [],
        [2, rows, 4],
    )


@gluon.jit
def read_words(address, BLOCK_T: gl.constexpr):
    """Words, int32 [2, BLOCK_T, 16]: a lane has 4 neighbours of every 16."""
    w0, w1, w2, w3 = load_4_words(address)
    return gl.reshape(gl.join(gl.join(w0, w2), gl.join(w1, w3)), [2, BLOCK_T, 16])


@gluon.jit
def read_candidates(rows, BLOCK_T: gl.constexpr):
    """A tile with candidates as rows, half of the columns to each half of the warps.

    Returns:
        Words of three groups, int32 [2, BLOCK_T, 16], of half of the seventh, [2, BLOCK_T, 8], and of half of the
        rotary columns, [2, BLOCK_T, 16].
    """
    L3: gl.constexpr = quarters_layout(BLOCK_T)
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))[:, None]
    j = gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    quarter = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, L3)))
    row = rows + row_offset(j)[None, :]
    quarter = gl.expand_dims(gl.expand_dims(quarter, 0), 0)
    address = gl.expand_dims(row + half * 192, 2) + quarter * 16
    words = ()
    for g in gl.static_range(3):
        words += (read_words(address + 64 * g, BLOCK_T),)
    w0, w1 = load_2_words(gl.expand_dims(row + (384 + half * 32), 2) + quarter * 8)
    words += (gl.reshape(gl.join(w0, w1), [2, BLOCK_T, 8]),)
    words += (read_words(gl.expand_dims(row + (448 + half * 64), 2) + quarter * 16, BLOCK_T),)
    return words


@gluon.constexpr_function
def spread_layout(rows: int, warps: int):
    """[rows // 8, 4, 8]: every warp all of it, a lane a head and every fourth pair."""
    log_warps, log_quads = warps.bit_length() - 1, rows.bit_length() - 4
    return gl.DistributedLinearLayout(
        bits(0, log_quads, 0, 3),
        bits(0, 2, 1, 3) + bits(0, 3, 2, 3),
        [[0, 0, 0]] * log_warps,
        [],
        [rows // 8, 4, 8],
    )


@gluon.constexpr_function
def quads_layout(rows: int, warps: int):
    """[8, rows // 4, 4]: a warp has whole groups, a lane every fourth candidate."""
    log_warps, log_quads = log2(warps), log2(rows) - 2
    # Which of 16: the second eight before the second four
    order = [[0, 2, 0], [0, 1, 0]] + bits(2, log_quads - 2, 1, 3) + bits(log_warps, 3 - log_warps, 0, 3)
    return gl.DistributedLinearLayout(
        order, bits(0, 2, 2, 3) + [[0, 0, 0]] * 3, bits(0, log_warps, 0, 3), [], [8, rows // 4, 4]
    )


@gluon.constexpr_function
def pairs_layout(rows: int, warps: int):
    """[8, rows, 8]: a warp has whole groups, a lane a pair of words of every fourth row."""
    log_warps, log_rows = warps.bit_length() - 1, rows.bit_length() - 1
    registers = [[0, 8, 0], [0, 4, 0]] + bits(4, log_rows - 4, 1, 3) + bits(log_warps, 3 - log_warps, 0, 3)
    lanes = bits(0, 2, 1, 3) + bits(0, 3, 2, 3)
    return gl.DistributedLinearLayout(registers, lanes, bits(0, log_warps, 0, 3), [], [8, rows, 8])


@gluon.jit
def read_columns(rows, BLOCK_T: gl.constexpr):
    """A tile by groups: words int32 [8, BLOCK_T, 16]. The eighth group is the rotary columns' and is not used so."""
    P3: gl.constexpr = pairs_layout(BLOCK_T, gl.num_warps())
    j = gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, gl.SliceLayout(2, P3)))
    group = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, P3)))
    pair = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, P3)))
    place = row_offset(j)[None, :] + group[:, None] * 64
    address = rows + gl.expand_dims(place, 2) + gl.expand_dims(gl.expand_dims(pair, 0), 1) * 8
    low, high = load_2_words(address)
    return gl.reshape(gl.join(low, high), [8, BLOCK_T, 16])


@gluon.constexpr_function
def matrices_layout(rows: int):
    """[rows // 16, 4, 32]: for four warps, a warp 16 columns, a lane an address of four matrices of 8 by 8."""
    log_units = (rows // 16).bit_length() - 1
    return gl.DistributedLinearLayout(
        bits(0, log_units, 0, 3), bits(0, 5, 2, 3), bits(0, 2, 1, 3), [], [rows // 16, 4, 32]
    )


@gluon.jit
def read_rotary(rows, OPERAND: gl.constexpr, BLOCK_T: gl.constexpr):
    """A tile's rotary columns as rows, bfloat16 [64, BLOCK_T], for four warps; candidates r and r + 8 of every 16 are
    neighbours.
    """
    M3: gl.constexpr = matrices_layout(BLOCK_T)
    unit = gl.arange(0, BLOCK_T // 16, layout=gl.SliceLayout(1, gl.SliceLayout(2, M3)))
    column = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, M3))) * 16
    lane = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, M3)))
    # Eight lanes a matrix, of which a lane names a row: candidates of 8 neighbours, first or last 8 columns
    j = ((lane >> 4) & 1) * 4 + ((lane & 7) >> 1) + 8 * (lane & 1)
    place = row_offset(j) + (448 + ((lane >> 3) & 1) * 16)
    first = (unit * (16 * PITCH))[:, None] + column[None, :] * 2
    address = rows + gl.expand_dims(first, 2) + gl.expand_dims(gl.expand_dims(place, 0), 1)
    r0, r1, r2, r3 = gl.inline_asm_elementwise(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r", [address],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    x = gl.join(gl.join(r0, r2), gl.join(r1, r3))
    one, other = gl.inline_asm_elementwise(
        HALVES, "=h,=h,r", [x], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=1
    )
    # unit, 16 columns, column of 8, pair of candidates, candidates' half, columns' half, candidate of the pair
    x = gl.reshape(gl.join(one, other), [BLOCK_T // 16, 4, 8, 4, 2, 2, 2])
    x = gl.reshape(gl.permute(x, (1, 5, 2, 0, 4, 3, 6)), [64, BLOCK_T])
    return gl.convert_layout(x, OPERAND, assert_trivial=True)


@gluon.jit
def read_scales(scale_bytes, BLOCK_T: gl.constexpr, LAYOUT: gl.constexpr):
    """The bytes of each group's scales, int32 [8, BLOCK_T] in `LAYOUT`, candidates in the same order."""
    L3: gl.constexpr = quads_layout(BLOCK_T, gl.num_warps())
    group = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))
    quad = gl.arange(0, BLOCK_T // 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    q = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, L3)))
    place = group[:, None] + (quad * 32)[None, :]
    place = scale_bytes + gl.expand_dims(place, 2) + gl.expand_dims(gl.expand_dims(q * 8, 0), 0)
    x = gl.reshape(load_byte(place), [8, BLOCK_T // 16, 2, 2, 4])
    x = gl.reshape(gl.permute(x, (0, 1, 3, 4, 2)), [8, BLOCK_T])
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)
