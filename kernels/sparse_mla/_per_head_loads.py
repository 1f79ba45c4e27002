"""How the two per-head rungs read a tile of tokens: by bytes, converted and scaled in float32."""

import triton
import triton.language as tl

from kernels.sparse_mla._dequantize import INTERPRETED
from kernels.sparse_mla._tile import locate


@triton.jit
def rounded_product(a, b):
    """`a * b` in float32, rounded before it is summed.

    Threads that hold copies of one sum exchange their products. Were a thread's own product fused into its first
    addition, unrounded, the copies would differ in their last bits, and where they meet in shared memory the last
    one written would stay.
    """
    if INTERPRETED:
        return a * b
    else:
        return tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def load_tokens(cache_ptr, slot, valid, page_stride, PAGE_SIZE: tl.constexpr, ALIGNED: tl.constexpr):
    """Dequantised tokens in float32: nope [T, 512] (448 used) and rope [T, 64]; nothing is read where not `valid`."""
    token, scale = locate(tl.where(valid, slot, 0), page_stride, PAGE_SIZE)
    column = tl.arange(0, 512)[None, :]
    used = valid[:, None] & (column < 448)
    raw = tl.load(cache_ptr + token[:, None] + column, mask=used, other=0)
    byte = tl.load(cache_ptr + scale[:, None] + column // 64, mask=used, other=127)
    nope = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32) * tl.exp2(byte.to(tl.float32) - 127.0)
    return nope, load_rope(cache_ptr + token[:, None] + 448, valid[:, None], ALIGNED).to(tl.float32)


@triton.jit
def load_rope(row_ptr, valid, ALIGNED: tl.constexpr):
    """The rotary columns, bfloat16 [T, 64]; a cache that starts at an odd byte is read by bytes."""
    column = tl.arange(0, 64)[None, :]
    if ALIGNED:
        return tl.load(row_ptr.to(tl.pointer_type(tl.bfloat16)) + column, mask=valid, other=0.0)
    else:
        low = tl.load(row_ptr + 2 * column, mask=valid, other=0).to(tl.uint16)
        high = tl.load(row_ptr + 2 * column + 1, mask=valid, other=0).to(tl.uint16)
        return (low | (high << 8)).to(tl.bfloat16, bitcast=True)
