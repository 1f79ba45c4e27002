"""How a row that two blocks share is finished: four parts of the heads and columns, one for each team of warps.

The blocks are a cluster, and each has two teams. Every team has accumulators for the whole row, of its own
candidates. It gives each of the other three what that one finishes, straight into its shared memory, and finishes the
fourth part itself: every second head, and half of each 8 neighbouring columns. What is given arrives by itself, and
counts its bytes down on the receiver's barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._addresses import bits, load_float, wait
from kernels.sparse_mla._result import statistics

FINISHERS = gl.constexpr(4)
# What one team gives another, float32: 8 groups of 32 columns and 32 rotary ones of 4 heads, then maxima and sums
ROTARY = gl.constexpr(8 * 32 * 4 * 4)
MAXIMA = gl.constexpr(ROTARY.value + 32 * 4 * 4)
SUMS = gl.constexpr(MAXIMA.value + 8 * 4)
PART = gl.constexpr(SUMS.value + 8 * 4)

COME = gl.constexpr("barrier.cluster.arrive.relaxed.aligned; // dummy $0")
AWAIT = gl.constexpr("barrier.cluster.wait.acquire.aligned; // dummy $0")


@gluon.jit
def come_to_cluster():
    """Every thread of both blocks says that its block has begun, and that its barriers are set up."""
    gl.inline_asm_elementwise(COME, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_cluster():
    """Wait until all have said so: before, nothing may be written into the other block."""
    gl.inline_asm_elementwise(AWAIT, "=r,~{memory}", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def address_in(address, block):
    """An address of this block's shared memory as that of the same place in a block of the cluster."""
    return gl.inline_asm_elementwise(
        "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, block], dtype=gl.int32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.constexpr_function
def give_text(mask):
    return f"""
{{
.reg .pred mine;
.reg .u32 thread;
mov.u32 thread, %tid.x;
and.b32 thread, thread, {mask};
setp.eq.u32 mine, thread, 0;
@mine st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$1], $2, [$3];
}}
// dummy $0
"""


@gluon.jit
def give(address, x, barrier, MASK: gl.constexpr):
    """Send x, float32, and count its bytes on a barrier. Of threads that hold the same, only those whose numbers have
    none of the bits of MASK may send: bytes are counted once each.
    """
    TEXT: gl.constexpr = give_text(MASK)
    gl.inline_asm_elementwise(
        TEXT, "=r,r,r,r,~{memory}", [address, x, address - address + barrier],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def parts_of(x):
    """What each of the four finishes of x [8, 64, 8], each [8, 32, 4]: heads by parity, columns by halves."""
    even, odd = gl.split(gl.reshape(x, [8, 64, 4, 2]))
    a, b = gl.split(gl.permute(gl.reshape(even, [8, 2, 32, 4]), (0, 2, 3, 1)))
    c, d = gl.split(gl.permute(gl.reshape(odd, [8, 2, 32, 4]), (0, 2, 3, 1)))
    return a, c, b, d


@gluon.jit
def rotary_parts_of(x):
    """Of x [64, 8] likewise, each [32, 4]: columns by halves of every 16."""
    even, odd = gl.split(gl.reshape(x, [64, 4, 2]))
    a, b = gl.split(gl.permute(gl.reshape(even, [4, 2, 8, 4]), (0, 2, 3, 1)))
    c, d = gl.split(gl.permute(gl.reshape(odd, [4, 2, 8, 4]), (0, 2, 3, 1)))
    return gl.reshape(a, [32, 4]), gl.reshape(c, [32, 4]), gl.reshape(b, [32, 4]), gl.reshape(d, [32, 4])


@gluon.jit
def chosen(xs, i):
    """Element i of a tuple of tensors."""
    x = gl.where(i == 1, xs[1], xs[0])
    for k in gl.static_range(2, len(xs)):
        x = gl.where(i == k, xs[k], x)
    return x


@gluon.jit
def by_parity(x, i, LAYOUT: gl.constexpr):
    """The elements of x [8 heads] whose number is i modulo 2, [4], in a layout."""
    return gl.convert_layout(chosen(gl.split(gl.reshape(x, [4, 2])), i % 2), LAYOUT)


@gluon.jit
def share_and_finish(
    acc, acc_rotary, m, total, given, barriers, block, TEAM: gl.constexpr,
    sink_ptr, out_row_ptr, stride_head, lse_row_ptr, head_first, heads,
    HAS_SINK: gl.constexpr, FINAL: gl.constexpr, A3: gl.constexpr,
):  # fmt: skip
    """Give three parts of the accumulators away, merge what is given for the fourth, and write that.

    Args:
        acc, acc_rotary, m, total: a team's own, as `add_tile` leaves them.
        given, barriers: addresses, the same in both blocks, of what the teams are given and of their barriers.
        block, TEAM: this block's number in the cluster, and the team's in the block.
    """
    LA: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, A3))
    WARPS: gl.constexpr = gl.num_warps()
    m = gl.convert_layout(m, LA)
    total = gl.convert_layout(total, LA)
    me = block * 2 + TEAM
    parts = parts_of(acc)
    rotary_parts = rotary_parts_of(acc_rotary)
    L3: gl.constexpr = parts[0].type.layout
    L2: gl.constexpr = rotary_parts[0].type.layout
    group = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))
    column = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    head = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, L3)))
    place = (group * 512)[:, None] + (column * 16)[None, :]
    place = gl.expand_dims(place, 2) + gl.expand_dims(gl.expand_dims(head * 4, 0), 1)
    place_rotary = (ROTARY + gl.arange(0, 32, layout=gl.SliceLayout(1, L2)) * 16)[:, None] + (
        gl.arange(0, 4, layout=gl.SliceLayout(0, L2)) * 4
    )[None, :]
    place_head = gl.arange(0, 8, layout=LA) * 4
    # Four lanes of a warp hold all heads' statistics, and all warps the same
    OTHERS: gl.constexpr = 32 * WARPS - 4
    await_cluster()
    for k in gl.static_range(1, FINISHERS):
        to = (me + k) % FINISHERS
        there = address_in(given + (to % 2 * (FINISHERS - 1) + (k - 1)) * PART, to // 2)
        barrier = address_in(barriers + to % 2 * 8, to // 2)
        give(there + place, chosen(parts, to), barrier, 0)
        give(there + place_rotary, chosen(rotary_parts, to), barrier, 0)
        give(there + (MAXIMA + place_head), m, barrier, OTHERS)
        give(there + (SUMS + place_head), total, barrier, OTHERS)
    x = chosen(parts, me)
    y = chosen(rotary_parts, me)
    given += TEAM * (FINISHERS - 1) * PART
    wait(barriers + TEAM * 8, 0)
    m_all = m
    for k in gl.static_range(FINISHERS - 1):
        m_all = gl.maximum(m_all, load_float(given + (k * PART + MAXIMA) + place_head))
    reference = gl.where(m_all == -float("inf"), 0.0, m_all)
    H3: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, L3))
    H2: gl.constexpr = gl.SliceLayout(0, L2)
    weight = gl.exp2(m - reference)
    total *= weight
    x *= gl.expand_dims(gl.expand_dims(by_parity(weight, me, H3), 0), 0)
    y *= by_parity(weight, me, H2)[None, :]
    for k in gl.static_range(FINISHERS - 1):
        there = given + k * PART
        weight = gl.exp2(load_float(there + (MAXIMA + place_head)) - reference)
        total += load_float(there + (SUMS + place_head)) * weight
        x += load_float(there + place) * gl.expand_dims(gl.expand_dims(by_parity(weight, me, H3), 0), 0)
        y += load_float(there + place_rotary) * by_parity(weight, me, H2)[None, :]
    head = head_first + gl.arange(0, 8, layout=LA)
    lse, factor = statistics(m_all, total, sink_ptr, head, heads, HAS_SINK, FINAL)
    gl.store(lse_row_ptr + head, lse, mask=(head < heads) & (me == 0))
    x *= gl.expand_dims(gl.expand_dims(by_parity(factor, me, H3), 0), 0)
    y *= by_parity(factor, me, H2)[None, :]
    write_part(x, y, out_row_ptr, stride_head, head_first, me, heads)


@gluon.constexpr_function
def part_layout(warps: int):
    """A part of the result, [4, 256]: a lane has 4 neighbouring columns of a head."""
    log_warps = warps.bit_length() - 1
    registers = bits(0, 2, 1, 2) + bits(5 + log_warps, 3 - log_warps, 1, 2)
    return gl.DistributedLinearLayout(
        registers, bits(0, 2, 0, 2) + bits(2, 3, 1, 2), bits(5, log_warps, 1, 2), [], [4, 256]
    )


@gluon.jit
def write_part(x, y, out_row_ptr, stride_head, head_first, me, heads):
    """Write the part that a team finishes: x [8, 32, 4] and rotary y [32, 4]."""
    DTYPE: gl.constexpr = out_row_ptr.dtype.element_ty
    L2: gl.constexpr = y.type.layout
    O2: gl.constexpr = part_layout(gl.num_warps())
    # Rows of the product back to columns of the row: see `columns_by_candidate`
    x = gl.permute(gl.reshape(x.to(DTYPE), [8, 2, 2, 8, 4]), (4, 0, 3, 1, 2))
    x = gl.convert_layout(gl.reshape(x, [4, 256]), O2, assert_trivial=True)
    head = head_first + 2 * gl.arange(0, 4, layout=gl.SliceLayout(1, O2)) + me % 2
    i = gl.arange(0, 256, layout=gl.SliceLayout(0, O2))
    column = i // 4 * 8 + me // 2 * 4 + i % 4
    mask = (head < heads)[:, None] & (column < 448)[None, :]
    gl.store(out_row_ptr + head.to(gl.int64)[:, None] * stride_head + column[None, :], x, mask=mask)
    head = head_first + 2 * gl.arange(0, 4, layout=gl.SliceLayout(0, L2)) + me % 2
    i = gl.arange(0, 32, layout=gl.SliceLayout(1, L2))
    column = 448 + i // 8 * 16 + me // 2 * 8 + i % 8
    gl.store(
        out_row_ptr + head.to(gl.int64)[None, :] * stride_head + column[:, None],
        y.to(DTYPE),
        mask=(head < heads)[None, :],
    )


@gluon.constexpr_function
def result_layout(warps: int):
    """The result [8, 512]: a lane has 8 neighbouring columns of two heads."""
    log_warps = warps.bit_length() - 1
    registers = bits(0, 3, 1, 2) + [[1, 0]] + bits(6 + log_warps, 3 - log_warps, 1, 2)
    lanes = bits(1, 2, 0, 2) + bits(3, 3, 1, 2)
    return gl.DistributedLinearLayout(registers, lanes, bits(6, log_warps, 1, 2), [], [8, 512])


@gluon.jit
def write_columns(
    acc, acc_rotary, factor, out_row_ptr, stride_head, head_first, heads, A3: gl.constexpr, R2: gl.constexpr
):
    """Write the result, or a partial result, from the accumulators and a factor for each head."""
    DTYPE: gl.constexpr = out_row_ptr.dtype.element_ty
    by_head = gl.convert_layout(factor, gl.SliceLayout(0, gl.SliceLayout(0, A3)))
    x = (acc * gl.expand_dims(gl.expand_dims(by_head, 0), 0)).to(DTYPE)
    # Rows of the product back to columns of the row: see `columns_by_candidate`
    x = gl.permute(gl.reshape(x, [8, 2, 2, 2, 8, 8]), (5, 0, 4, 1, 2, 3))
    O2: gl.constexpr = result_layout(gl.num_warps())
    x = gl.convert_layout(gl.reshape(x, [8, 512]), O2, assert_trivial=True)
    head = head_first + gl.arange(0, 8, layout=gl.SliceLayout(1, O2))
    column = gl.arange(0, 512, layout=gl.SliceLayout(0, O2))
    mask = (head < heads)[:, None] & (column < 448)[None, :]
    gl.store(out_row_ptr + head.to(gl.int64)[:, None] * stride_head + column[None, :], x, mask=mask)

    by_head = gl.convert_layout(factor, gl.SliceLayout(0, R2))
    x = (acc_rotary * by_head[None, :]).to(DTYPE)
    head = head_first + gl.arange(0, 8, layout=gl.SliceLayout(0, R2))
    column = 448 + gl.arange(0, 64, layout=gl.SliceLayout(1, R2))
    gl.store(
        out_row_ptr + head.to(gl.int64)[None, :] * stride_head + column[:, None],
        x,
        mask=(head < heads)[None, :],
    )
