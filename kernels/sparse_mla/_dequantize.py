"""From cache bytes to bfloat16, exactly: four e4m3 values at a time in integer registers.

An e4m3 byte `s eeee mmm` moved into a bfloat16 as `s 0000eeee mmm0000` is the same number times 2**-120,
subnormals included. One packed multiply by 2**120 restores it and one by the group's power of two scales it.
Both are exact, so no conversion instruction and no rounding is involved. The interpreter runs the plain twin.
"""

import triton
import triton.language as tl

from kernels import triton_mode

INTERPRETED = tl.constexpr(triton_mode.interpreted())

_PACKED = tl.constexpr("""
{
.reg .b32 low, high, a, b;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
shr.u32 a, low, 4;
shr.u32 b, high, 4;
and.b32 low, low, 0x80008000;
and.b32 high, high, 0x80008000;
and.b32 a, a, 0x07f007f0;
and.b32 b, b, 0x07f007f0;
or.b32 low, low, a;
or.b32 high, high, b;
mov.b32 a, 0x7b807b80;
mov.b32 b, 0x80008000;
fma.rn.bf16x2 low, low, a, b;
fma.rn.bf16x2 high, high, a, b;
fma.rn.bf16x2 $0, low, $3, b;
fma.rn.bf16x2 $1, high, $4, b;
}
""")


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
def decode_scale(byte):
    """UE8M0 bytes (any integer type) to the bfloat16 power of two 2**(byte - 127); byte 0 gives 0."""
    return (byte.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)


@triton.jit
def dequantize(raw, scale):
    """e4m3 bytes `raw` (uint8) times `scale` (bfloat16 powers of two, broadcastable) as bfloat16."""
    scale = tl.broadcast_to(scale, raw.shape)
    if INTERPRETED:
        value = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        return (value * scale.to(tl.float32)).to(tl.bfloat16)
    else:
        return tl.inline_asm_elementwise(
            _PACKED, "=r,=r,r,r,r", [raw, scale], dtype=tl.bfloat16, is_pure=True, pack=4
        )
