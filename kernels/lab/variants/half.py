"""Idea: K and V in float16, by the conversion instruction that the hardware has, with the scale inside.

One instruction widens two e4m3 numbers to float16, one packed product applies the group's scale: for four numbers
four instructions in place of ten. Weights in float16 keep three bits more than in bfloat16. The price is range.
float16 holds a group exactly when its scale is between 2**-14 and 2**7, so when the largest of its 64 numbers is
between about 0.014 and 57,344. Below that a group becomes zeros, above it saturates. The cache format promises no
such range. Queries go to float16 too: exact for magnitudes from 2**-14 to 65,504.

The loop is `byte_tiles`', with this as its OPTION. K and V uint8 [BLOCK_T, 448] and bfloat16 [BLOCK_T, 64].
"""

import triton
import triton.language as tl


@triton.jit
def dequantise_half(byte, scale, BLOCK_T: tl.constexpr, WIDTH: tl.constexpr):
    """Bytes [BLOCK_T, groups, 64] times their scales [BLOCK_T, groups, 1], as float16 [BLOCK_T, WIDTH]."""
    exponent = tl.minimum(tl.maximum(scale.to(tl.int32) - 112, 0), 22)
    factor = (exponent << 10).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(byte.to(tl.float8e4nv, bitcast=True).to(tl.float16) * factor, (BLOCK_T, WIDTH))
