"""What the variants share: which part of a row a program takes, the bytes of a tile, and what it leaves behind.

A variant is one `@triton.jit` function with the loop of rung `split_k` and one idea of its own. It gets the whole
main loop and stores its columns, so that two ideas differ in nothing else. One cache only: a second one is not
what these experiments are about.
"""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import INTERPRETED, PACKED, SELECTOR, to_bfloat16
from kernels.sparse_mla._tile import load_length, locate

# Bytes spread over two words, signs and the rest in their places: the text of the rungs up to its multiplications
_SPREAD = PACKED.value.partition("fma")[0].replace("$4", "$2").replace("$6", hex(SELECTOR.value))
# Four e4m3 bytes in a word to four bfloat16, without a scale
_UNPACK = tl.constexpr(
    _SPREAD
    + """fma.rn.bf16x2 $0, low, a, b;
fma.rn.bf16x2 $1, high, a, b;
}
"""
)
# The same with a scale for each number, bfloat16
_UNPACK_SCALED = tl.constexpr(
    _SPREAD
    + """fma.rn.bf16x2 low, low, a, b;
fma.rn.bf16x2 high, high, a, b;
fma.rn.bf16x2 $0, low, $3, b;
fma.rn.bf16x2 $1, high, $4, b;
}
"""
)


@triton.jit
def power_of_two(byte):
    """UE8M0 bytes as float32; byte 0 stands for 0."""
    return (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def unpack_bfloat16(byte):
    """e4m3 bytes, uint8, as bfloat16 of the same value. No scale is applied."""
    if INTERPRETED:
        return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(tl.bfloat16)
    else:
        return tl.inline_asm_elementwise(
            _UNPACK, "=&r,=&r,r", [byte], dtype=tl.bfloat16, is_pure=True, pack=4
        )


@triton.jit
def dequantise(byte, scale, BLOCK_T: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes uint8 [BLOCK_T, groups, 64] times UE8M0 bytes [BLOCK_T, groups, 1], as bfloat16 [BLOCK_T, WIDTH]."""
    if INTERPRETED:
        number = byte.to(tl.float8e4nv, bitcast=True).to(tl.float32) * power_of_two(scale)
        value = to_bfloat16(number)
    else:
        factor = tl.broadcast_to((scale.to(tl.uint16) << 7).to(tl.bfloat16, bitcast=True), byte.shape)
        value = tl.inline_asm_elementwise(
            _UNPACK_SCALED, "=&r,=&r,r,r,r", [byte, factor], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    return tl.reshape(value, (BLOCK_T, WIDTH))


@triton.jit
def cast(x, dtype: tl.constexpr):
    """float32 `x` as bfloat16, float16 or float32, to nearest even."""
    if dtype == tl.bfloat16:
        return to_bfloat16(x)
    else:
        return x.to(dtype)


@triton.jit
def fetch_slots(indices_ptr, tile, last, length, BLOCK_T: tl.constexpr):
    """Slots of a tile's candidates, int32 [BLOCK_T], negative where absent."""
    position = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    return tl.load(indices_ptr + position, mask=(position < length) & (tile < last), other=-1)


@triton.jit
def rows_of(slot, cache_ptr, page_stride, PAGE_SIZE: tl.constexpr):
    """Pointers to the slots' token rows and scale bytes, and which slots are there."""
    token, scale = locate(tl.where(slot >= 0, slot, 0), page_stride, PAGE_SIZE)
    return cache_ptr + token, cache_ptr + scale, slot >= 0


@triton.jit
def load_bytes(row_ptr, mask, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """e4m3 bytes of `GROUPS` groups of 64 columns from group `FIRST` on; uint8 [BLOCK_T, GROUPS, 64]."""
    column = (FIRST + tl.arange(0, GROUPS))[None, :, None] * 64 + tl.arange(0, 64)[None, None, :]
    return tl.load(row_ptr[:, None, None] + column, mask=mask[:, None, None], other=0)


@triton.jit
def load_scales(scale_ptr, mask, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """UE8M0 bytes of the same groups; uint8 [BLOCK_T, GROUPS, 1], 127 (a scale of 1) where absent."""
    group = (FIRST + tl.arange(0, GROUPS))[None, :, None]
    return tl.load(scale_ptr[:, None, None] + group, mask=mask[:, None, None], other=127)


@triton.jit
def load_rotary(row_ptr, mask):
    """The rotary columns, bfloat16 [BLOCK_T, 64]."""
    pair = row_ptr.to(tl.pointer_type(tl.bfloat16))[:, None] + (224 + tl.arange(0, 64))[None, :]
    return tl.load(pair, mask=mask[:, None], other=0.0)


@triton.jit
def load_columns(q_ptr, head, heads, stride_head, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Columns `FIRST : FIRST + WIDTH` of a head group's queries; bfloat16 [BLOCK_H, WIDTH]."""
    row = q_ptr + head[:, None].to(tl.int64) * stride_head
    return tl.load(row + (FIRST + tl.arange(0, WIDTH))[None, :], mask=head[:, None] < heads, other=0.0)


@triton.jit
def store_columns(out_ptr, head, heads, acc, factor, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Store `acc * factor` as columns `FIRST : FIRST + WIDTH` of the heads' partial outputs, [heads, 512]."""
    pointer = out_ptr + head[:, None].to(tl.int64) * 512 + (FIRST + tl.arange(0, WIDTH))[None, :]
    value = cast(acc * factor[:, None], out_ptr.dtype.element_ty)
    tl.store(pointer, value, mask=head[:, None] < heads)


@triton.jit
def load_group(row_ptr, mask, GROUP: tl.constexpr):
    """e4m3 bytes of one group of 64 columns; uint8 [BLOCK_T, 64]."""
    column = GROUP * 64 + tl.arange(0, 64)
    return tl.load(row_ptr[:, None] + column[None, :], mask=mask[:, None], other=0)


@triton.jit
def load_groups(row_ptr, mask):
    """The seven nope groups, each for itself; seven uint8 [BLOCK_T, 64]."""
    return (
        load_group(row_ptr, mask, 0), load_group(row_ptr, mask, 1), load_group(row_ptr, mask, 2),
        load_group(row_ptr, mask, 3), load_group(row_ptr, mask, 4), load_group(row_ptr, mask, 5),
        load_group(row_ptr, mask, 6),
    )  # fmt: skip


@triton.jit
def load_group_scales(scale_ptr, mask):
    """The UE8M0 bytes of the seven groups; seven uint8 [BLOCK_T], 0 (a scale of nothing) where absent."""
    return (
        tl.load(scale_ptr, mask=mask, other=0), tl.load(scale_ptr + 1, mask=mask, other=0),
        tl.load(scale_ptr + 2, mask=mask, other=0), tl.load(scale_ptr + 3, mask=mask, other=0),
        tl.load(scale_ptr + 4, mask=mask, other=0), tl.load(scale_ptr + 5, mask=mask, other=0),
        tl.load(scale_ptr + 6, mask=mask, other=0),
    )  # fmt: skip


@triton.jit
def load_query_groups(q_ptr, head, heads, stride_head):
    """The queries' seven nope groups; seven bfloat16 [BLOCK_H, 64]."""
    return (
        load_columns(q_ptr, head, heads, stride_head, 0, 64), load_columns(q_ptr, head, heads, stride_head, 64, 64),
        load_columns(q_ptr, head, heads, stride_head, 128, 64), load_columns(q_ptr, head, heads, stride_head, 192, 64),
        load_columns(q_ptr, head, heads, stride_head, 256, 64), load_columns(q_ptr, head, heads, stride_head, 320, 64),
        load_columns(q_ptr, head, heads, stride_head, 384, 64),
    )  # fmt: skip


@triton.jit
def zero_groups(BLOCK_H: tl.constexpr):
    """Seven accumulators, float32 [BLOCK_H, 64]."""
    zero = tl.zeros((BLOCK_H, 64), tl.float32)
    return (zero, zero, zero, zero, zero, zero, zero)


@triton.jit
def store_groups(out_ptr, head, heads, acc, factor):
    """Store the seven nope groups of an accumulator times `factor`."""
    store_columns(out_ptr, head, heads, acc[0], factor, 0, 64)
    store_columns(out_ptr, head, heads, acc[1], factor, 64, 64)
    store_columns(out_ptr, head, heads, acc[2], factor, 128, 64)
    store_columns(out_ptr, head, heads, acc[3], factor, 192, 64)
    store_columns(out_ptr, head, heads, acc[4], factor, 256, 64)
    store_columns(out_ptr, head, heads, acc[5], factor, 320, 64)
    store_columns(out_ptr, head, heads, acc[6], factor, 384, 64)


@triton.jit
def reciprocal(total):
    """1 / total, and 0 for a row without candidates."""
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@triton.jit
def variant_kernel(
    q_ptr, kv_ptr, indices_ptr, length_ptr, partial_out_ptr, partial_lse_ptr,
    heads, topk, scale_log2,
    stride_q_row, stride_q_head, stride_page, stride_indices, stride_length,
    PAGE_SIZE: tl.constexpr, HAS_LENGTH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
    ATTEND: tl.constexpr, OPTION: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Rung `split_k` around one variant's `ATTEND`. Grid (B, head groups, splits * PARTS).

    ATTEND stores its normalised columns at the partial output and returns the running maximum (base 2) and sum.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2) // PARTS
    part = tl.program_id(2) % PARTS
    num_splits = tl.num_programs(2) // PARTS
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    tiles = tl.cdiv(length, BLOCK_T)
    first = split * tiles // num_splits
    last = (split + 1) * tiles // num_splits
    # A split without tiles reads no query and writes no output: to it, there are no heads
    live_heads = tl.where(first < last, heads, 0)
    partial = (row * num_splits + split) * heads
    m, total = ATTEND(
        q_ptr + row * stride_q_row, head, live_heads, stride_q_head,
        kv_ptr, indices_ptr + row * stride_indices, length, stride_page, first, last, scale_log2,
        partial_out_ptr + partial * 512, part, PAGE_SIZE, BLOCK_H, BLOCK_T, OPTION,
    )  # fmt: skip
    tl.store(partial_lse_ptr + partial + head, m + tl.log2(total), mask=(head < heads) & (part == 0))
