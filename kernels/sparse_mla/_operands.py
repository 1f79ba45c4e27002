"""Bytes of the cache as operands of `mma.sync`, without a scale: who holds what, and the way from e4m3 to float16.

A lane holds 16 bytes of a candidate in every 64 columns. That is what the tensor core asks of a first operand whose
rows are candidates, if columns are summed in another order. As a first operand whose rows are columns, a lane needs
a column of several candidates; then it holds 8 neighbouring columns of every fourth candidate, and the bytes of two
candidates are put side by side before they are converted.

The conversion is exact and takes an instruction for two values, from sm_89 on.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._dequantize import HALVES

# Four e4m3 values of a word as float16
VALUES = gl.constexpr("""
{
.reg .b16 one, other;
.reg .b32 low, high;
mov.b32 {one, other}, $4;
cvt.rn.f16x2.e4m3x2 low, one;
cvt.rn.f16x2.e4m3x2 high, other;
mov.b32 {$0, $1}, low;
mov.b32 {$2, $3}, high;
}
""")
# The values of two candidates' words, column by column: both candidates' first, both candidates' second, ...
NEIGHBOURS = gl.constexpr("""
{
.reg .b16 one, other;
.reg .b32 low, high, values;
prmt.b32 low, $8, $9, 0x5140;
prmt.b32 high, $8, $9, 0x7362;
mov.b32 {one, other}, low;
cvt.rn.f16x2.e4m3x2 values, one;
mov.b32 {$0, $1}, values;
cvt.rn.f16x2.e4m3x2 values, other;
mov.b32 {$2, $3}, values;
mov.b32 {one, other}, high;
cvt.rn.f16x2.e4m3x2 values, one;
mov.b32 {$4, $5}, values;
cvt.rn.f16x2.e4m3x2 values, other;
mov.b32 {$6, $7}, values;
}
""")


@gluon.jit
def values_of(words, ROWS: gl.constexpr, WIDTH: gl.constexpr, OPERAND: gl.constexpr):
    """Words int32 [2, ROWS, WIDTH // 4] of four e4m3 values as float16 [2, ROWS, WIDTH] in an operand's layout."""
    v0, v1, v2, v3 = gl.inline_asm_elementwise(
        VALUES, "=h,=h,=h,=h,r", [words],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16), is_pure=True, pack=1,
    )  # fmt: skip
    values = gl.reshape(gl.join(gl.join(v0, v2), gl.join(v1, v3)), [2, ROWS, WIDTH])
    return gl.convert_layout(values, OPERAND, assert_trivial=True)


@gluon.jit
def halves_of(words, DTYPE: gl.constexpr):
    """Words int32 [a, b, width] as two values each, [a, b, 2 * width]."""
    low, high = gl.inline_asm_elementwise(
        HALVES, "=h,=h,r", [words], dtype=(gl.int16, gl.int16), is_pure=True, pack=1
    )
    x = gl.reshape(gl.join(low, high), [words.shape[0], words.shape[1], 2 * words.shape[2]])
    return x.to(DTYPE, bitcast=True)


@gluon.jit
def columns_by_candidate(words, BLOCK_T: gl.constexpr):
    """Words [8, BLOCK_T, 16] of all groups as values float16 [8, 64, BLOCK_T].

    Of the 64 columns, a lane's 8 neighbours lie 8 rows apart here: a row of `mma.sync` belongs to a lane's index.
    """
    pairs = gl.permute(gl.reshape(words, [8, BLOCK_T // 16, 2, 8, 16]), (0, 1, 3, 4, 2))
    one, other = gl.split(pairs)
    a0, b0, a1, b1, a2, b2, a3, b3 = gl.inline_asm_elementwise(
        NEIGHBOURS, "=h,=h,=h,=h,=h,=h,=h,=h,r,r", [one, other],
        dtype=(
            gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16,
        ), is_pure=True, pack=1,
    )  # fmt: skip
    low = gl.join(gl.join(a0, b0), gl.join(a1, b1))
    high = gl.join(gl.join(a2, b2), gl.join(a3, b3))
    # group, 16 candidates, lane's candidate, lane's columns, word, candidate of the pair, byte's bits
    x = gl.reshape(gl.join(low, high), [8, BLOCK_T // 16, 8, 8, 2, 2, 2, 2])
    return gl.reshape(gl.permute(x, (0, 4, 7, 6, 3, 1, 2, 5)), [8, 64, BLOCK_T])
