"""The pieces that every rung with tensor-core products shares: fetch a tile, score it, fold it in.

The 512 columns are four blocks, nope 256 + 128 + 64 and the rotary 64, because a block's width is a power of
two and padding 448 to 512 would multiply zeros. A tile is fetched as 32-bit words, one tile ahead of its use and
its slots two ahead, so that the products of one tile run while the next is on its way.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import INTERPRETED, dequantize_words, split_words, to_bfloat16


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
def locate(slot, page_stride, PAGE_SIZE: tl.constexpr):
    """Byte offsets, in 64 bits, of the slots' token rows and scale rows."""
    page = slot // PAGE_SIZE
    offset = slot - page * PAGE_SIZE
    base = page.to(tl.int64) * page_stride
    return base + offset * 576, base + (576 * PAGE_SIZE + offset * 8)


@triton.jit
def load_words(row_ptr, word, mask, ALIGNED: tl.constexpr):
    """The 32-bit words `word` of the rows at `row_ptr`; a cache that is not aligned to 4 bytes is read by bytes."""
    if ALIGNED:
        # Cast the row before adding the word, so that the compiler sees neighbours and loads 16 bytes at once
        return tl.load(row_ptr.to(tl.pointer_type(tl.int32)) + word, mask=mask, other=0)
    else:
        b0 = tl.load(row_ptr + 4 * word, mask=mask, other=0).to(tl.int32)
        b1 = tl.load(row_ptr + 4 * word + 1, mask=mask, other=0).to(tl.int32)
        b2 = tl.load(row_ptr + 4 * word + 2, mask=mask, other=0).to(tl.int32)
        b3 = tl.load(row_ptr + 4 * word + 3, mask=mask, other=0).to(tl.int32)
        return b0 | (b1 << 8) | (b2 << 16) | (b3 << 24)


@triton.jit
def fetch_slots(
    indices_ptr, extra_indices_ptr, tile, last, tiles, length, extra_length,
    HAS_EXTRA: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Slots of a tile's candidates, int32 [BLOCK_T], negative where absent; from tile `tiles` on, the extra cache's."""
    if HAS_EXTRA:
        extra = tile >= tiles
        position = tl.where(extra, tile - tiles, tile) * BLOCK_T + tl.arange(0, BLOCK_T)
        mask = (position < tl.where(extra, extra_length, length)) & (tile < last)
        return tl.load(tl.where(extra, extra_indices_ptr, indices_ptr) + position, mask=mask, other=-1)
    else:
        position = tile * BLOCK_T + tl.arange(0, BLOCK_T)
        return tl.load(indices_ptr + position, mask=(position < length) & (tile < last), other=-1)


@triton.jit
def fetch_tile(
    slot, cache_ptr, extra_cache_ptr, page_stride, extra_page_stride, tile, tiles,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr, HAS_EXTRA: tl.constexpr,
):  # fmt: skip
    """The raw words and scale bytes of a tile's tokens. An absent candidate reads nothing and gives zeros."""
    valid = slot >= 0
    slot = tl.where(valid, slot, 0)
    token, scale = locate(slot, page_stride, PAGE_SIZE)
    if HAS_EXTRA:
        extra = tile >= tiles
        extra_token, extra_scale = locate(slot, extra_page_stride, EXTRA_PAGE_SIZE)
        token = tl.where(extra, extra_token, token)
        scale = tl.where(extra, extra_scale, scale)
        cache_ptr = tl.where(extra, extra_cache_ptr, cache_ptr)
    row_ptr = cache_ptr + token[:, None, None]
    scale = scale[:, None, None]
    mask = valid[:, None, None]
    word = tl.arange(0, 16)[None, None, :]
    group_a = tl.arange(0, 4)[None, :, None]
    group_b = tl.arange(0, 2)[None, :, None]
    group_c = tl.arange(0, 1)[None, :, None]
    # int32 [BLOCK_T, groups, 16]: a group of 64 columns shares one scale byte
    raw_a = load_words(row_ptr, group_a * 16 + word, mask, ALIGNED)
    raw_b = load_words(row_ptr, 64 + group_b * 16 + word, mask, ALIGNED)
    raw_c = load_words(row_ptr, 96 + group_c * 16 + word, mask, ALIGNED)
    raw_r = load_words(row_ptr, 112 + tl.arange(0, 32)[None, None, :], mask, ALIGNED)
    byte_a = tl.load(cache_ptr + scale + group_a, mask=mask, other=127)
    byte_b = tl.load(cache_ptr + scale + (4 + group_b), mask=mask, other=127)
    byte_c = tl.load(cache_ptr + scale + (6 + group_c), mask=mask, other=127)
    return raw_a, raw_b, raw_c, raw_r, byte_a, byte_b, byte_c


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
    q_ptr, head, heads, stride_head,
    cache_ptr, indices_ptr, length, page_stride, extra_cache_ptr, extra_indices_ptr, extra_length, extra_page_stride,
    first, last, tiles, scale_log2,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr, HAS_EXTRA: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Attention of a head group over tiles `first : last` of a row's candidates, unnormalised.

    Tiles `0 : tiles` are the main cache's and those from `tiles` on the extra cache's: one list, one softmax.

    Returns the four column blocks of the weighted sum, and the running maximum (base 2) and sum of weights.
    """
    slot = fetch_slots(
        indices_ptr, extra_indices_ptr, first, last, tiles, length, extra_length, HAS_EXTRA, BLOCK_T
    )
    next_slot = fetch_slots(
        indices_ptr, extra_indices_ptr, first + 1, last, tiles, length, extra_length, HAS_EXTRA, BLOCK_T
    )
    raw_a, raw_b, raw_c, raw_r, byte_a, byte_b, byte_c = fetch_tile(
        slot, cache_ptr, extra_cache_ptr, page_stride, extra_page_stride, first, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, ALIGNED, HAS_EXTRA,
    )  # fmt: skip
    q_a, q_b, q_c, q_r = load_query(q_ptr, head, heads, stride_head)
    acc_a = tl.zeros((BLOCK_H, 256), tl.float32)
    acc_b = tl.zeros((BLOCK_H, 128), tl.float32)
    acc_c = tl.zeros((BLOCK_H, 64), tl.float32)
    acc_r = tl.zeros((BLOCK_H, 64), tl.float32)
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    for tile in range(first, last):
        valid = slot >= 0
        k_a = dequantize_words(raw_a, byte_a, BLOCK_T, 256)
        k_b = dequantize_words(raw_b, byte_b, BLOCK_T, 128)
        k_c = dequantize_words(raw_c, byte_c, BLOCK_T, 64)
        k_r = split_words(tl.reshape(raw_r, (BLOCK_T, 32)), BLOCK_T)
        slot = next_slot
        raw_a, raw_b, raw_c, raw_r, byte_a, byte_b, byte_c = fetch_tile(
            slot, cache_ptr, extra_cache_ptr, page_stride, extra_page_stride, tile + 1, tiles,
            PAGE_SIZE, EXTRA_PAGE_SIZE, ALIGNED, HAS_EXTRA,
        )  # fmt: skip
        next_slot = fetch_slots(
            indices_ptr, extra_indices_ptr, tile + 2, last, tiles, length, extra_length, HAS_EXTRA, BLOCK_T
        )

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
    tl.store(
        row + (256 + tl.arange(0, 128))[None, :], convert(acc_b * factor, ptr.dtype.element_ty), mask=mask
    )
    tl.store(
        row + (384 + tl.arange(0, 64))[None, :], convert(acc_c * factor, ptr.dtype.element_ty), mask=mask
    )
    tl.store(
        row + (448 + tl.arange(0, 64))[None, :], convert(acc_r * factor, ptr.dtype.element_ty), mask=mask
    )


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
