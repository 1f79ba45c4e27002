"""The pieces that every rung with tensor-core products shares: read a tile, score it, fold it in.

The 512 columns are four blocks, nope 256 + 128 + 64 and the rotary 64, because a block's width is a power of
two and padding 448 to 512 would multiply zeros.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import INTERPRETED, decode_scale, dequantize, to_bfloat16


@triton.jit
def dot(a, b, acc):
    """`acc + a @ b` in float32. The interpreter multiplies bfloat16 as integers, so it gets float32 operands."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc)


@triton.jit
def load_length(length_ptr, row, stride, capacity, HAS_LENGTH: tl.constexpr):
    """The number of candidates of `row` that count, between 0 and `capacity`."""
    length = capacity
    if HAS_LENGTH:
        length = tl.minimum(tl.maximum(tl.load(length_ptr + row * stride).to(tl.int32), 0), capacity)
    return length


@triton.jit
def load_slots(indices_ptr, position, length):
    """Slots of the candidates at `position`, and which of them count; the others are slot 0, never to be read."""
    slot = tl.load(indices_ptr + position, mask=position < length, other=-1)
    valid = slot >= 0
    return tl.where(valid, slot, 0), valid


@triton.jit
def locate(slot, page_stride, PAGE_SIZE: tl.constexpr):
    """Byte offsets, in 64 bits, of the slots' token rows and scale rows."""
    page = slot // PAGE_SIZE
    offset = slot - page * PAGE_SIZE
    base = page.to(tl.int64) * page_stride
    return base + offset * 576, base + (576 * PAGE_SIZE + offset * 8)


@triton.jit
def load_nope(cache_ptr, token, scale, valid, FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr):
    """Columns `FIRST : FIRST + WIDTH` of a tile of tokens, dequantised; bfloat16 [BLOCK_T, WIDTH]."""
    group = tl.arange(0, WIDTH // 64)[None, :, None]
    column = tl.arange(0, 64)[None, None, :]
    # [BLOCK_T, WIDTH // 64, 64]: one scale serves a row of 64, without moving it between threads
    raw = tl.load(cache_ptr + token[:, None, None] + (FIRST + group * 64 + column), mask=valid[:, None, None], other=0)
    byte = tl.load(cache_ptr + scale[:, None, None] + (FIRST // 64 + group), mask=valid[:, None, None], other=127)
    return tl.reshape(dequantize(raw, decode_scale(byte)), (BLOCK_T, WIDTH))


@triton.jit
def load_rope(cache_ptr, token, valid, ALIGNED: tl.constexpr):
    """The rotary columns of a tile of tokens; bfloat16 [BLOCK_T, 64]."""
    column = tl.arange(0, 64)[None, :]
    row = cache_ptr + token[:, None] + 448
    if ALIGNED:
        return tl.load(row.to(tl.pointer_type(tl.bfloat16)) + column, mask=valid[:, None], other=0.0)
    else:
        # A cache that starts at an odd byte: two byte loads a value
        low = tl.load(row + 2 * column, mask=valid[:, None], other=0).to(tl.int16)
        high = tl.load(row + 2 * column + 1, mask=valid[:, None], other=0).to(tl.int16)
        return (low | (high << 8)).to(tl.bfloat16, bitcast=True)


@triton.jit
def load_query(q_ptr, head, heads, stride_head):
    """The four column blocks of a head group's queries; bfloat16 [BLOCK_H, 256], [.., 128], [.., 64], [.., 64]."""
    row = q_ptr + head[:, None].to(tl.int64) * stride_head
    mask = head[:, None] < heads
    q_a = tl.load(row + tl.arange(0, 256)[None, :], mask=mask, other=0.0)
    q_b = tl.load(row + (256 + tl.arange(0, 128))[None, :], mask=mask, other=0.0)
    q_c = tl.load(row + (384 + tl.arange(0, 64))[None, :], mask=mask, other=0.0)
    q_r = tl.load(row + (448 + tl.arange(0, 64))[None, :], mask=mask, other=0.0)
    return q_a, q_b, q_c, q_r


@triton.jit
def update_online_softmax(scores, m, total):
    """Fold scores `[BLOCK_H, BLOCK_T]` (base 2, -inf where absent) into the running maximum and sum.

    Returns the tile's weights, the factor that rescales what was accumulated before, and the new maximum and
    sum. A tile without candidates changes nothing, also when none came before it.
    """
    m_new = tl.maximum(m, tl.max(scores, 1))
    reference = tl.where(m_new == -float("inf"), 0.0, m_new)
    weights = tl.exp2(scores - reference[:, None])
    rescale = tl.exp2(m - reference)
    return weights, rescale, m_new, total * rescale + tl.sum(weights, 1)


@triton.jit
def attend(
    q_a, q_b, q_c, q_r, acc_a, acc_b, acc_c, acc_r, m, total,
    cache_ptr, indices_ptr, length, page_stride, first_tile, last_tile, scale_log2,
    PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Fold the candidates of tiles `first_tile : last_tile` of one cache into the running attention."""
    for tile in range(first_tile, last_tile):
        position = tile * BLOCK_T + tl.arange(0, BLOCK_T)
        slot, valid = load_slots(indices_ptr, position, length)
        token, scale = locate(slot, page_stride, PAGE_SIZE)
        k_a = load_nope(cache_ptr, token, scale, valid, 0, 256, BLOCK_T)
        k_b = load_nope(cache_ptr, token, scale, valid, 256, 128, BLOCK_T)
        k_c = load_nope(cache_ptr, token, scale, valid, 384, 64, BLOCK_T)
        k_r = load_rope(cache_ptr, token, valid, ALIGNED)

        scores = tl.zeros((BLOCK_H, BLOCK_T), tl.float32)
        scores = dot(q_a, tl.trans(k_a), scores)
        scores = dot(q_b, tl.trans(k_b), scores)
        scores = dot(q_c, tl.trans(k_c), scores)
        scores = dot(q_r, tl.trans(k_r), scores)
        scores = tl.where(valid[None, :], scores * scale_log2, -float("inf"))

        weights, rescale, m, total = update_online_softmax(scores, m, total)
        p = to_bfloat16(weights)
        acc_a = dot(p, k_a, acc_a * rescale[:, None])
        acc_b = dot(p, k_b, acc_b * rescale[:, None])
        acc_c = dot(p, k_c, acc_c * rescale[:, None])
        acc_r = dot(p, k_r, acc_r * rescale[:, None])
    return acc_a, acc_b, acc_c, acc_r, m, total


@triton.jit
def convert(x, dtype: tl.constexpr):
    """float32 `x` as `dtype`, bfloat16 or float32."""
    if dtype == tl.bfloat16:
        return to_bfloat16(x)
    else:
        return x


@triton.jit
def store_blocks(ptr, head, heads, stride_head, acc_a, acc_b, acc_c, acc_r, factor):
    """Store the four column blocks times `factor` `[BLOCK_H]`, each head's 512 numbers in one row."""
    row = ptr + head[:, None].to(tl.int64) * stride_head
    mask = head[:, None] < heads
    factor = factor[:, None]
    tl.store(row + tl.arange(0, 256)[None, :], convert(acc_a * factor, ptr.dtype.element_ty), mask=mask)
    tl.store(row + (256 + tl.arange(0, 128))[None, :], convert(acc_b * factor, ptr.dtype.element_ty), mask=mask)
    tl.store(row + (384 + tl.arange(0, 64))[None, :], convert(acc_c * factor, ptr.dtype.element_ty), mask=mask)
    tl.store(row + (448 + tl.arange(0, 64))[None, :], convert(acc_r * factor, ptr.dtype.element_ty), mask=mask)


@triton.jit
def sink_weight(sink_ptr, head, heads, m, HAS_SINK: tl.constexpr):
    """The sink's share of the denominator, relative to the maximum `m` (base 2); 0 without a sink."""
    if HAS_SINK:
        sink = tl.load(sink_ptr + head, mask=head < heads, other=-float("inf")) * 1.4426950408889634
        return tl.exp2(sink - tl.where(m == -float("inf"), 0.0, m))
    else:
        return tl.zeros_like(m)


@triton.jit
def normalise(m, total, sink):
    """1 / denominator (0 for an empty row) and the natural-log LSE without the sink (+inf for an empty row)."""
    empty = total == 0.0
    factor = tl.where(empty, 0.0, 1.0 / tl.where(empty, 1.0, total + sink))
    lse = tl.where(empty, float("inf"), (m + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453)
    return factor, lse
