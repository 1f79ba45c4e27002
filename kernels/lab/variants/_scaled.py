"""What both variants with block-scaled products share: rounding to e4m3 with UE8M0 scales, and the product itself."""

import triton
import triton.language as tl

from kernels.lab.variants._frame import power_of_two
from kernels.sparse_mla._dequantize import INTERPRETED


@triton.jit
def round_e4m3(x):
    """float32 within 448, rounded to e4m3's numbers, half to even. The interpreter's own conversion rounds wrongly."""
    exponent = (x.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # Adding 1.5 * 2**23 units of the last place leaves no bit below it: 3 bits of fraction, 2**-9 for subnormals
    shift = ((tl.maximum(exponent, 121) + 20) << 23).to(tl.float32, bitcast=True) * 1.5
    return (x + shift) - shift


@triton.jit
def quantise(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """float32 [ROWS, WIDTH] as e4m3 numbers [ROWS, WIDTH] with one UE8M0 byte, uint8 [ROWS, WIDTH // 32], for 32.

    A scale is the smallest power of two that keeps its block's largest number within 448, e4m3's largest.
    """
    block = tl.reshape(x, (ROWS, WIDTH // 32, 32))
    bits = (tl.max(tl.abs(block), 2) * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    byte = tl.minimum(tl.maximum((bits + 0x7FFFFF) >> 23, 1), 253)
    inverse = ((254 - byte) << 23).to(tl.float32, bitcast=True)
    # Where the division was rounded down to a power of two, the largest number is a little over 448
    small = tl.minimum(tl.maximum(block * inverse[:, :, None], -448.0), 448.0)
    if INTERPRETED:
        small = round_e4m3(small)
    return tl.reshape(small.to(tl.float8e4nv), (ROWS, WIDTH)), byte.to(tl.uint8)


@triton.jit
def dot_scaled(a, a_scale, b, b_scale, acc, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """`acc + (a * a_scale) @ (b * b_scale)` of e4m3 [M, K] and [K, N]; UE8M0 scales uint8 [M, K//32], [N, K//32].

    The interpreter has no such product: it gets the same numbers in float32, in which each of them is exact.
    """
    if INTERPRETED:
        a_factor = power_of_two(a_scale)[:, :, None]
        b_factor = power_of_two(b_scale)[:, :, None]
        a_number = tl.reshape(a.to(tl.float32), (M, K // 32, 32)) * a_factor
        b_number = tl.reshape(tl.trans(b.to(tl.float32)), (N, K // 32, 32)) * b_factor
        return tl.dot(tl.reshape(a_number, (M, K)), tl.trans(tl.reshape(b_number, (N, K))), acc)
    else:
        return tl.dot_scaled(a, a_scale, "e4m3", b, b_scale, "e4m3", acc)


@triton.jit
def as_e4m3(byte, BLOCK_T: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes [BLOCK_T, ...] as e4m3 [BLOCK_T, WIDTH]: another name for the same bits."""
    return tl.reshape(byte, (BLOCK_T, WIDTH)).to(tl.float8e4nv, bitcast=True)


@triton.jit
def twice(scale, BLOCK_T: tl.constexpr, GROUPS: tl.constexpr):
    """A scale for each 64 columns, uint8 [BLOCK_T, GROUPS, 1], as one for each 32: [BLOCK_T, 2 * GROUPS]."""
    return tl.reshape(tl.broadcast_to(scale, (BLOCK_T, GROUPS, 2)), (BLOCK_T, 2 * GROUPS))
