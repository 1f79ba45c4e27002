"""The two products of the kernel for up to 8 heads: scores of a tile, then weights and the tile's share of the output.

For the scores a row of the product is a candidate. Bytes go into the tensor core as float16 and unscaled; a group's
scale multiplies the group's part of the score. A team has four warps, and two would do for a tile's rows: so the
warps are two halves, and each half has half of the columns. The output sums over candidates: there each warp takes
the 64 columns of two groups of all candidates, and works out all weights for itself from both halves' scores. The
groups' scales go into the weights, and since float16 has little range, the weights of a group are divided by a power
of two near the largest of them so far.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mma_v2

from kernels.sparse_mla._addresses import load_2_floats, load_float, load_long, store_2_floats
from kernels.sparse_mla._copied_rows import read_rotary, spread_layout
from kernels.sparse_mla._layouts import log2
from kernels.sparse_mla._operands import halves_of, values_of
from kernels.sparse_mla._special import exp2, power_near, power_of

# The largest score so far where there was none: a number, so that -inf less it is -inf
LOWEST = gl.constexpr(-1.0e30)
# What a candidate's scores take in shared memory: of both halves, float32
SCORE_BYTES = gl.constexpr(2 * 8 * 4)


@gluon.jit
def score_tile(
    queries, unit, words, at, scale_bytes, biases, scale_log2, BLOCK_T: gl.constexpr, S3: gl.constexpr
):
    """Leave a tile's scores in base 2 in shared memory, of either half of the columns by itself.

    Args:
        queries: a warp's half of the queries, as `load_queries` gives it.
        unit: factor of each head's scores, float32 [2, 8].
        at: address of the scores: `SCORE_BYTES` a candidate.
        words: the tile's rows, as `read_candidates` gives them.
        scale_bytes, biases: addresses of 8 bytes of scales a candidate, and of float32 0 or -inf a candidate.
    """
    LS: gl.constexpr = gl.SliceLayout(2, S3)
    zeros = gl.zeros([2, BLOCK_T, 8], gl.float32, layout=S3)
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, LS))[:, None]
    j = gl.arange(0, BLOCK_T, layout=gl.SliceLayout(0, LS))[None, :]
    scales = load_long(scale_bytes + j * 8 + half * 0)
    present = load_float(biases + j * 4 + half * 0) == 0.0
    last = (scales >> 48).to(gl.int32)
    scales >>= 24 * half
    k = values_of(words[3], BLOCK_T, 32, gl.DotOperandLayout(0, S3, 8))
    total = mma_v2(k, queries[3], zeros) * gl.expand_dims(power_of(last & 0xFF), 2)
    for g in gl.static_range(3):
        k = values_of(words[g], BLOCK_T, 64, gl.DotOperandLayout(0, S3, 16))
        scale = power_of((scales >> (8 * g)).to(gl.int32) & 0xFF)
        total += mma_v2(k, queries[g], zeros) * gl.expand_dims(scale, 2)
    k = halves_of(words[4], gl.bfloat16)
    k = gl.convert_layout(k, gl.DotOperandLayout(0, S3, 8), assert_trivial=True)
    rotary = mma_v2(k, queries[4], zeros)
    scores = total * gl.expand_dims(unit, 1) + rotary * scale_log2
    # By selection: a query of NaN, as in a padding row, must not reach a row without candidates
    scores = gl.where(gl.expand_dims(present, 2), scores, -float("inf"))
    # Candidates r and r + 8 of every 16 side by side
    pairs = gl.permute(gl.reshape(scores, [2, BLOCK_T // 16, 2, 8, 8]), (0, 1, 3, 4, 2))
    low, high = gl.split(gl.reshape(pairs, [2, BLOCK_T // 2, 8, 2]))
    L3: gl.constexpr = low.type.layout
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))
    pair = gl.arange(0, BLOCK_T // 2, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    head = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(0, L3)))
    place = (half * (BLOCK_T * 32))[:, None] + (pair * 64)[None, :]
    pair = gl.arange(0, BLOCK_T // 2, layout=gl.SliceLayout(1, gl.SliceLayout(0, L3)))
    slot = (head[None, :] + (4 * (pair >> 1))[:, None]) & 7
    store_2_floats(at + gl.expand_dims(place, 2) + gl.expand_dims(slot * 8, 0), low, high)


@gluon.jit
def load_scores(at, BLOCK_T: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores float32 [BLOCK_T, 8] in `LAYOUT`, candidates r and r + 8 of every 16 side by side."""
    L3: gl.constexpr = spread_layout(BLOCK_T, gl.num_warps())
    quad = gl.arange(0, BLOCK_T // 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))
    q = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    head = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(0, L3)))
    # Pair 4 * quad + q; twice the quad does not count in the slot
    qq = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(0, L3)))
    slot = (head[None, :] + 4 * (qq >> 1)[:, None]) & 7
    place = (quad * 256)[:, None] + (q * 64)[None, :]
    place = at + gl.expand_dims(slot * 8, 0) + gl.expand_dims(place, 2)
    low, high = load_2_floats(place)
    more_low, more_high = load_2_floats(place + BLOCK_T * 32)
    scores = gl.join(low + more_low, high + more_high)
    scores = gl.reshape(gl.permute(scores, (0, 1, 3, 2)), [BLOCK_T, 8])
    return gl.convert_layout(scores, LAYOUT, assert_trivial=True)


@gluon.jit
def candidates_last(x, BLOCK_T: gl.constexpr):
    """[groups, BLOCK_T, 8] as [groups, 4, 8, BLOCK_T // 4]: a lane has a head's candidates of the last dimension."""
    x = gl.reshape(x, [x.shape[0], BLOCK_T // 16, 2, 4, 2, 8])
    return gl.reshape(gl.permute(x, (0, 3, 5, 1, 2, 4)), [x.shape[0], 4, 8, BLOCK_T // 4])


@gluon.jit
def largest_of(x, BLOCK_T: gl.constexpr, LAYOUT: gl.constexpr):
    """The largest of all candidates, [groups, 8] in `LAYOUT`: a lane's own two by two, not one after the other."""
    x = candidates_last(x, BLOCK_T)
    for _ in gl.static_range(log2(BLOCK_T) - 2):
        a, b = gl.split(gl.reshape(x, [x.shape[0], 4, 8, x.shape[3] // 2, 2]))
        x = gl.maximum(a, b)
    return gl.convert_layout(gl.max(gl.reshape(x, [x.shape[0], 4, 8]), 1), LAYOUT, assert_trivial=True)


@gluon.jit
def sums_of(x, BLOCK_T: gl.constexpr):
    """The sums of each lane's candidates, [groups, 4, 8]."""
    x = candidates_last(x, BLOCK_T)
    for _ in gl.static_range(log2(BLOCK_T) - 2):
        a, b = gl.split(gl.reshape(x, [x.shape[0], 4, 8, x.shape[3] // 2, 2]))
        x = a + b
    return gl.reshape(x, [x.shape[0], 4, 8])


@gluon.jit
def add_tile(
    v, scales, at, rows, acc, acc_rotary, m, unit, total, BLOCK_T: gl.constexpr, A3: gl.constexpr, R2: gl.constexpr
):  # fmt: skip
    """Add a tile's candidates to the accumulators [8 groups, 64, 8 heads] and [64 rotary, 8 heads].

    Args:
        v: the tile's values, float16 [8, 64, BLOCK_T], an operand.
        scales: bytes of the groups' scales, int32 [8, BLOCK_T].
        m: the largest score so far in base 2, [1, 8].
        unit: what a group's accumulators are multiples of, a power of two near the largest weight times scale, [8, 8].
        total: each lane's sum of weights, [1, 4, 8].

    Returns:
        The new ones of both accumulators, m, unit and total.
    """
    B3: gl.constexpr = gl.DotOperandLayout(1, A3, 2)
    LM: gl.constexpr = gl.SliceLayout(1, B3)
    scores = gl.expand_dims(load_scores(at, BLOCK_T, gl.SliceLayout(0, B3)), 0)
    m_new = gl.maximum(m, largest_of(scores, BLOCK_T, LM))
    rescale = exp2(m - m_new)
    weights = exp2(scores - gl.expand_dims(m_new, 1))
    # Groups' scales go into the weights, and a power of two near the largest of these comes out: float16 has little
    # range. A tile far below has weights that vanish, and the power stays a number
    scaled = weights * gl.expand_dims(power_of(scales), 2)
    old = unit * rescale
    unit, inverse = power_near(gl.maximum(old, largest_of(scaled, BLOCK_T, LM)))
    p = (scaled * gl.expand_dims(inverse, 1)).to(gl.float16)
    factor = gl.convert_layout(old * inverse, gl.SliceLayout(1, A3))
    acc = mma_v2(v, p, acc * gl.expand_dims(factor, 1))

    sums = sums_of(weights, BLOCK_T)
    by_lane = gl.convert_layout(rescale, gl.SliceLayout(1, sums.type.layout), assert_trivial=True)
    total = total * gl.expand_dims(by_lane, 1) + sums
    v = read_rotary(rows, gl.DotOperandLayout(0, R2, 2), BLOCK_T)
    p = gl.reshape(weights, [BLOCK_T, 8]).to(gl.bfloat16)
    p = gl.convert_layout(p, gl.DotOperandLayout(1, R2, 2), assert_trivial=True)
    factor = gl.convert_layout(gl.reshape(rescale, [8]), gl.SliceLayout(0, R2))
    return acc, mma_v2(v, p, acc_rotary * factor[None, :]), m_new, unit, total
