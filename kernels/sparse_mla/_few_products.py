"""The two products of the kernel for up to 8 heads: scores and weights of a tile, then its share of the output.

For the scores a row of the product is a candidate. Bytes go into the tensor core as float16 and unscaled; a group's
scale multiplies the group's part of the score. The output sums over candidates: there each warp takes groups of 64
columns of all candidates. The group's scales go into the weights, and since float16 has little range, the weights of
a group are divided by a power of two near the largest of them first.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mma_v2

from kernels.sparse_mla._addresses import load_float, load_long
from kernels.sparse_mla._copied_rows import read_candidates, read_columns, read_rotary
from kernels.sparse_mla._operands import columns_by_candidate, rotary_of, side_by_side, values_of


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
    handed, q_smem, unit_smem, rows, scale_bytes, biases, scale_log2, BLOCK_T: gl.constexpr, S2: gl.constexpr
):
    """Leave a tile's weights and scales in shared memory as the second product takes them.

    Candidates r and r + 8 of every 16 are neighbours there. Each warp's weights refer to the warp's own maximum, so
    that one barrier is enough.

    Args:
        handed: buffers for weights, scales, the warps' maxima and the warps' sums of weights.
        rows, scale_bytes, biases: addresses of the tile's rows, of 8 bytes of scales a candidate, and of float32 0 or
            -inf a candidate.
    """
    weight_smem, scale_smem, max_smem, sum_smem = handed
    WARPS: gl.constexpr = gl.num_warps()
    LS: gl.constexpr = gl.SliceLayout(1, S2)
    E2: gl.constexpr = gl.BlockedLayout([4, 1], [1, 32], [2, WARPS // 2], [0, 1])
    words = read_candidates(rows, BLOCK_T)
    j = gl.arange(0, BLOCK_T, layout=LS)
    bias = load_float(biases + j * 4)
    rotary = rotary_of(words[7], BLOCK_T)
    product = scores_of(q_smem, unit_smem, words, rotary, load_long(scale_bytes + j * 8), scale_log2, S2)
    # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
    by_warp = gl.reshape(gl.where((bias == 0.0)[:, None], product, -float("inf")), [WARPS, 16, 8])
    largest = gl.max(by_warp, 1)
    reference = gl.where(largest == -float("inf"), 0.0, largest)
    by_warp = gl.exp2(by_warp - gl.expand_dims(reference, 1))
    max_smem.store(largest)
    sum_smem.store(gl.sum(by_warp, 1))
    pairs = gl.reshape(side_by_side(gl.reshape(by_warp, [BLOCK_T, 8]), BLOCK_T, 8), [BLOCK_T // 2, 2, 8])
    weight_smem.store(gl.permute(pairs, (0, 2, 1)))
    group = gl.arange(0, 8, layout=gl.SliceLayout(1, E2))[:, None]
    j = gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, E2))
    scales = scale_of(load_long(scale_bytes + j * 8)[None, :], group)
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
def add_tile(
    handed, rows, acc, acc_rotary, m, total, BLOCK_T: gl.constexpr, A3: gl.constexpr, R2: gl.constexpr
):  # fmt: skip
    """Add a tile's candidates to the accumulators [8 groups, 64, 8 heads] and [64 rotary, 8 heads].

    Returns:
        Both accumulators, the new maximum (base 2) and the new sum of the weights, [8 heads].
    """
    weight_smem, scale_smem, max_smem, sum_smem = handed
    WARPS: gl.constexpr = gl.num_warps()
    B3: gl.constexpr = gl.DotOperandLayout(1, A3, 2)
    P2: gl.constexpr = gl.SliceLayout(0, B3)
    LM: gl.constexpr = gl.SliceLayout(0, P2)
    by_warp = gl.reshape(load_weights(weight_smem, BLOCK_T, P2), [WARPS, 16, 8])
    W3: gl.constexpr = by_warp.type.layout
    largest = max_smem.load(gl.SliceLayout(1, W3))
    m_new = gl.maximum(m, gl.convert_layout(gl.max(largest, 0), LM))
    reference = gl.where(m_new == -float("inf"), 0.0, m_new)
    rescale = gl.exp2(m - reference)
    by_head = gl.convert_layout(reference, gl.SliceLayout(0, gl.SliceLayout(1, W3)))
    share = gl.exp2(largest - by_head[None, :])
    sums = gl.sum(sum_smem.load(gl.SliceLayout(1, W3)) * share, 0)
    total = total * rescale + gl.convert_layout(sums, LM)
    by_warp = by_warp * gl.expand_dims(share, 1)
    weights = gl.convert_layout(gl.reshape(by_warp, [BLOCK_T, 8]), P2, assert_trivial=True)

    scaled = gl.expand_dims(weights, 0) * gl.expand_dims(scale_smem.load(gl.SliceLayout(2, B3)), 2)
    # A tile far below the row's maximum has weights that vanish: the power stays a number, and so do they
    power, inverse = power_near(gl.max(scaled, 1))
    p = (scaled * gl.expand_dims(inverse, 1)).to(gl.float16)
    v = columns_by_candidate(read_columns(rows, BLOCK_T), BLOCK_T)
    v = gl.convert_layout(v, gl.DotOperandLayout(0, A3, 2), assert_trivial=True)
    part = mma_v2(v, p, gl.zeros([8, 64, 8], gl.float32, layout=A3))
    part *= gl.expand_dims(gl.convert_layout(power, gl.SliceLayout(1, A3)), 1)
    factor = gl.convert_layout(rescale, gl.SliceLayout(0, gl.SliceLayout(0, A3)))
    acc = acc * gl.expand_dims(gl.expand_dims(factor, 0), 0) + part

    v = read_rotary(rows, gl.DotOperandLayout(0, R2, 2), BLOCK_T)
    p = gl.convert_layout(weights.to(gl.bfloat16), gl.DotOperandLayout(1, R2, 2), assert_trivial=True)
    factor = gl.convert_layout(rescale, gl.SliceLayout(0, R2))
    return acc, mma_v2(v, p, acc_rotary * factor[None, :]), m_new, total
