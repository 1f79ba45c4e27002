"""Numbers that the special function unit makes, and powers of two by their bits, in Gluon."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def exp2(x):
    """2 to the power of float32, without subnormal numbers."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def log2_of(x):
    """Base-2 logarithm of float32 by the special function unit: an error of 2**-22 at most."""
    return gl.inline_asm_elementwise(
        "lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def inverse_of(x):
    """1 / x of float32 by the special function unit: the last bit may be wrong."""
    return gl.inline_asm_elementwise(
        "rcp.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def power_near(x):
    """The power of two at or below each x >= 0, and its inverse: both normal numbers, so neither is 0 or infinite."""
    exponent = gl.minimum(gl.maximum(x.to(gl.int32, bitcast=True) & 0x7F800000, 1 << 23), 253 << 23)
    return exponent.to(gl.float32, bitcast=True), ((254 << 23) - exponent).to(gl.float32, bitcast=True)


@gluon.jit
def power_of(byte):
    """A scale's byte, int32, as a power of two, float32; byte 0 stands for 0."""
    return (byte << 23).to(gl.float32, bitcast=True)
