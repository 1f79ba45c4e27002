"""From cache bytes to bfloat16, exactly: four e4m3 values at a time in integer registers.

An e4m3 byte `s eeee mmm` moved into a bfloat16 as `s 0000eeee mmm0000` is the same number times 2**-120,
subnormals included. One packed multiply by 2**120 restores it and one by the group's power of two scales it.
Both are exact, so no conversion instruction and no rounding is involved. The interpreter runs the plain twin.
"""

import triton
import triton.language as tl

from kernels import triton_mode

INTERPRETED = tl.constexpr(triton_mode.interpreted())

# One 32-bit word of four e4m3 bytes and a scale doubled into both halves, to four bfloat16. A byte's sign has to move
# four places further than the rest of it. Of the first two, `prmt` leaves the byte in the lower half of 16 bits and
# its sign in all of the upper half: shifted by 4, only superfluous signs have to go. Of the other two it leaves the
# byte in the upper half, and sign and rest are put together. The first way is shorter; both pairs by it would take
# more registers than warps that only fetch have.
# $6 is `SELECTOR` in its lower half. `prmt` reads no further, so that a caller may put anything into the upper half,
# and no word is taken apart before that is known.
PACKED = tl.constexpr("""
{
.reg .b32 low, high, a, b;
prmt.b32 low, $4, 0, $6;
sub.u32 a, $6, 0x5d5c;
prmt.b32 high, $4, 0, a;
shr.u32 b, high, 4;
shl.b32 low, low, 4;
and.b32 high, high, 0x80008000;
and.b32 low, low, 0x87f087f0;
and.b32 b, b, 0x07f007f0;
or.b32 high, high, b;
mov.b32 a, 0x7b807b80;
mov.b32 b, 0x80008000;
fma.rn.bf16x2 low, low, a, b;
fma.rn.bf16x2 high, high, a, b;
fma.rn.bf16x2 low, low, $5, b;
fma.rn.bf16x2 high, high, $5, b;
mov.b32 {$0, $1}, low;
mov.b32 {$2, $3}, high;
}
""")
# Byte 0 and its sign, byte 1 and its sign. Less 0x5d5c it is nothing and byte 2, nothing and byte 3
SELECTOR = tl.constexpr(0x9180)
HALVES = tl.constexpr("mov.b32 {$0, $1}, $2;")


@triton.jit
def to_bfloat16(x):
    """float32 to bfloat16, to nearest even. The interpreter's own conversion truncates, so it rounds by hand."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def decode_byte(word, scale, position: tl.constexpr):
    """Byte `position` of each word as e4m3, times `scale` (float32): the interpreter's way."""
    byte = ((word >> (8 * position)) & 0xFF).to(tl.uint8)
    return (byte.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale).to(tl.bfloat16)


@triton.jit
def dequantize_words(word, scale_byte, BLOCK_T: tl.constexpr, WIDTH: tl.constexpr):
    """Words of four e4m3 bytes times their group's UE8M0 scale.

    Args:
        word: int32 [BLOCK_T, WIDTH // 64, 16].
        scale_byte: uint8 [BLOCK_T, WIDTH // 64, 1]; byte 0 stands for 0 instead of 2**-127.

    Returns:
        bfloat16 [BLOCK_T, WIDTH].
    """
    if INTERPRETED:
        scale = (scale_byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        v0 = decode_byte(word, scale, 0)
        v1 = decode_byte(word, scale, 1)
        v2 = decode_byte(word, scale, 2)
        v3 = decode_byte(word, scale, 3)
    else:
        half = scale_byte.to(tl.int32) << 7
        scale = tl.broadcast_to(half | (half << 16), word.shape)
        selector = tl.full(word.shape, SELECTOR, tl.int32)
        v0, v1, v2, v3 = tl.inline_asm_elementwise(
            PACKED, "=h,=h,=h,=h,r,r,r", [word, scale, selector],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=1,
        )  # fmt: skip
    return tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), (BLOCK_T, WIDTH))


@triton.jit
def split_words(word, BLOCK_T: tl.constexpr):
    """Words of two bfloat16, int32 [BLOCK_T, 32], as bfloat16 [BLOCK_T, 64]."""
    if INTERPRETED:
        low = (word & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        high = ((word >> 16) & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        low, high = tl.inline_asm_elementwise(
            HALVES, "=h,=h,r", [word], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=1
        )
    return tl.reshape(tl.join(low, high), (BLOCK_T, 64))
