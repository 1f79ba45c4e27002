"""The queries of the kernel for up to 8 heads, from global memory to operands that stay in registers.

They are the second operand of a tile's first product, and the same for all tiles. A warp needs half of the columns of
all heads: 16 or 8 neighbouring columns of a head to a lane.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._layouts import bits, log2
from kernels.sparse_mla._special import power_near


@gluon.constexpr_function
def runs_layout(width):
    """[2, 8, 4, width]: of four warps, each half all heads, a lane a run of neighbouring columns."""
    log_width = width.bit_length() - 1
    warps = [[0, 0, 0, 0], [1, 0, 0, 0]]
    return gl.DistributedLinearLayout(
        bits(0, log_width, 3, 4), bits(0, 2, 2, 4) + bits(0, 3, 1, 4), warps, [], [2, 8, 4, width]
    )


@gluon.jit
def load_run(q_row_ptr, stride_head, heads, first, step, WIDTH: gl.constexpr):
    """Columns from `first` on of either half, bfloat16 [2, 8, 4, WIDTH]; the second half's lie `step` further."""
    L4: gl.constexpr = runs_layout(WIDTH)
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L4))))
    head = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L4))))
    run = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(0, gl.SliceLayout(3, L4))))
    i = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, gl.SliceLayout(0, gl.SliceLayout(0, L4))))
    place = (first + half * step)[:, None] + head.to(gl.int64)[None, :] * stride_head
    place = gl.expand_dims(place, 2) + gl.expand_dims(gl.expand_dims(run * WIDTH, 0), 0)
    place = gl.expand_dims(place, 3) + gl.expand_dims(gl.expand_dims(gl.expand_dims(i, 0), 0), 0)
    there = gl.expand_dims(gl.expand_dims((head < heads)[None, :], 2), 3)
    return gl.load(q_row_ptr + place, mask=there, other=0.0)


@gluon.jit
def largest_of_run(x):
    """The largest size in each run, float32 [2, 8, 4]."""
    x = gl.abs(x.to(gl.float32))
    for _ in gl.static_range(log2(x.shape[3])):
        a, b = gl.split(gl.reshape(x, [2, 8, 4, x.shape[3] // 2, 2]))
        x = gl.maximum(a, b)
    return gl.reshape(x, [2, 8, 4])


@gluon.jit
def divided(x, inverse):
    """Runs times a factor [2, 8] of each half and head, as float16."""
    LI: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, x.type.layout))
    inverse = gl.convert_layout(inverse, LI, assert_trivial=True)
    return (x.to(gl.float32) * gl.expand_dims(gl.expand_dims(inverse, 2), 3)).to(gl.float16)


@gluon.jit
def as_operand(x, OPERAND: gl.constexpr):
    """Runs [2, 8, 4, width] as [2, 4 * width, 8] in an operand's layout."""
    x = gl.permute(gl.reshape(x, [2, 8, 4 * x.shape[3]]), (0, 2, 1))
    return gl.convert_layout(x, OPERAND, assert_trivial=True)


@gluon.jit
def load_queries(q_row_ptr, stride_head, heads, scale_log2, S3: gl.constexpr):
    """A half's queries as operands: three groups float16 [2, 64, 8], half of the seventh [2, 32, 8], and half of the
    rotary columns, bfloat16 [2, 32, 8]. Either half of a head is divided by a power of two near its largest entry.

    Returns:
        The operands, and the factor of the halves' scores, float32 [2, 8].
    """
    runs = ()
    for g in gl.static_range(3):
        runs += (load_run(q_row_ptr, stride_head, heads, 64 * g, 192, 16),)
    runs += (load_run(q_row_ptr, stride_head, heads, 384, 32, 8),)
    rotary = load_run(q_row_ptr, stride_head, heads, 448, 32, 8)
    largest = gl.maximum(largest_of_run(runs[0]), largest_of_run(runs[1]))
    largest = gl.maximum(largest, largest_of_run(runs[2]))
    last = gl.convert_layout(largest_of_run(runs[3]), largest.type.layout, assert_trivial=True)
    power, inverse = power_near(gl.max(gl.maximum(largest, last), 2))
    queries = ()
    for g in gl.static_range(4):
        queries += (as_operand(divided(runs[g], inverse), gl.DotOperandLayout(1, S3, runs[g].shape[3])),)
    queries += (as_operand(rotary, gl.DotOperandLayout(1, S3, 8)),)
    return queries, gl.convert_layout(power * scale_log2, gl.SliceLayout(1, S3))
