"""How teams that share a row finish it: each gives the others what they finish, and finishes a part itself.

Two teams of a block, or of each of two blocks of a cluster, have accumulators for the whole row, of their own
candidates. A team finishes every second head; of two blocks, each half of the groups and rotary columns. `_gifts` has
how what is given gets there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._addresses import arrive, wait
from kernels.sparse_mla._gifts import address_in, await_cluster, give, take
from kernels.sparse_mla._layouts import bits, log2
from kernels.sparse_mla._result import weigh
from kernels.sparse_mla._special import exp2


@gluon.constexpr_function
def places_of_part(blocks):
    """Offsets in what one team gives another, in bytes: rotary columns, each head's maximum and sum, its size. First
    come 64 columns of a group for 4 heads, float32. A thread finds its own where the same thread put it.
    """
    rotary = 8 // blocks * 64 * 4 * 4
    statistics = rotary + 64 // blocks * 4 * 4
    return rotary, statistics, statistics + 8 * 2 * 4


# The size of what one team gives another
@gluon.constexpr_function
def part_bytes(blocks):
    return places_of_part(blocks)[-1]


@gluon.jit
def parts_of(x, BLOCKS: gl.constexpr):
    """Of x [8 groups, 64, 8 heads] what each block and team finishes, [8 // BLOCKS, 64, 4]: blocks halves of the
    groups, teams every second head.
    """
    even, odd = gl.split(gl.reshape(x, [8, 64, 4, 2]))
    parts = ((even, odd),)
    if BLOCKS == 2:
        a, c = gl.split(gl.permute(gl.reshape(even, [2, 4, 64, 4]), (1, 2, 3, 0)))
        b, d = gl.split(gl.permute(gl.reshape(odd, [2, 4, 64, 4]), (1, 2, 3, 0)))
        parts = ((a, b), (c, d))
    return parts


@gluon.jit
def rotary_parts_of(x, BLOCKS: gl.constexpr):
    """Of x [64, 8] likewise, [64 // BLOCKS, 4]: blocks halves of every 16 columns."""
    even, odd = gl.split(gl.reshape(x, [64, 4, 2]))
    parts = ((even, odd),)
    if BLOCKS == 2:
        a, c = gl.split(gl.permute(gl.reshape(even, [4, 2, 8, 4]), (0, 2, 3, 1)))
        b, d = gl.split(gl.permute(gl.reshape(odd, [4, 2, 8, 4]), (0, 2, 3, 1)))
        a, b, c, d = (
            gl.reshape(a, [32, 4]),
            gl.reshape(b, [32, 4]),
            gl.reshape(c, [32, 4]),
            gl.reshape(d, [32, 4]),
        )
        parts = ((a, b), (c, d))
    return parts


@gluon.jit
def part_of(parts, block, TEAM: gl.constexpr):
    """A block's and a team's of the parts."""
    part = parts[0][TEAM]
    if len(parts) == 2:
        part = gl.where(block == 0, part, parts[1][TEAM])
    return part


@gluon.jit
def own_heads(x, TEAM: gl.constexpr, LAYOUT: gl.constexpr):
    """A team's of 8 heads, [4], in a layout."""
    return gl.convert_layout(gl.split(gl.reshape(x, [4, 2]))[TEAM], LAYOUT)


@gluon.jit
def give_part(
    parts, rotary_parts, both, place, place_rotary, place_both, given, barriers, there, there_barriers, block,
    K: gl.constexpr, TEAM: gl.constexpr, PAIR: gl.constexpr,
):  # fmt: skip
    """Give the team that is K further on its part, and the statistics.

    `given` and `barriers` are this block's, `there` and `there_barriers` the other's.
    """
    BLOCKS: gl.constexpr = 2 if PAIR else 1
    TO_TEAM: gl.constexpr = (TEAM + K) % 2
    # Four lanes of a warp hold all heads' statistics, and all warps the same
    OTHERS: gl.constexpr = 32 * gl.num_warps() - 4
    to, barrier, of = there, barriers + TO_TEAM * 8, block
    if PAIR:
        at = (TO_TEAM * 3 + (K - 1)) * places_of_part(BLOCKS)[2]
        to = given + at
        if (TEAM + K) // 2 % BLOCKS == 1:
            to, barrier, of = there + at, there_barriers + TO_TEAM * 8, 1 - block
    give(to + place_both, both, barrier, 4, OTHERS, PAIR)
    give(to + place, part_of(parts, of, TO_TEAM), barrier, 4, 0, PAIR)
    give(to + place_rotary, part_of(rotary_parts, of, TO_TEAM), barrier, 1, 0, PAIR)
    if not PAIR:
        arrive(barrier)


@gluon.jit
def share_and_finish(
    acc, acc_rotary, m, total, sink, given, there, barriers, block, TEAM: gl.constexpr,
    out_row_ptr, stride_head, lse_row_ptr, head_first, heads,
    HAS_SINK: gl.constexpr, FINAL: gl.constexpr, PAIR: gl.constexpr, A3: gl.constexpr,
):  # fmt: skip
    """Give the others' parts of the accumulators away, merge what is given for the own part, and write that.

    Args:
        acc, acc_rotary, m, total: a team's own; m and total are in the accumulators' layout.
        sink: each head's, in base 2.
        given, there: address of what this team is given, and of what it gives the other team of a block alone. Of two
            blocks, both are the address, in either block, of what all teams are given.
        barriers: address of the teams' barriers, in either block.
        block, TEAM: this block's number in the cluster, and the team's in the block.
    """
    LA: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(0, A3))
    BLOCKS: gl.constexpr = 2 if PAIR else 1
    AT: gl.constexpr = places_of_part(BLOCKS)
    FINISHERS: gl.constexpr = 2 * BLOCKS
    parts = parts_of(acc, BLOCKS)
    rotary_parts = rotary_parts_of(acc_rotary, BLOCKS)
    x, y = part_of(parts, block, TEAM), part_of(rotary_parts, block, TEAM)
    L3: gl.constexpr = x.type.layout
    L2: gl.constexpr = y.type.layout
    # A thread's 8 rows of an accumulator lie 8 apart; 4 of them go at once
    group = gl.arange(0, 8 // BLOCKS, layout=gl.SliceLayout(1, gl.SliceLayout(2, L3)))
    row = gl.arange(0, 64, layout=gl.SliceLayout(0, gl.SliceLayout(2, L3)))
    head = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, L3)))
    place = (group * 512)[:, None] + (row // 32 * (8 // BLOCKS * 512) + row % 8 * 64 + row // 8 % 4 * 4)[
        None, :
    ]
    place = gl.expand_dims(place, 2) + gl.expand_dims(gl.expand_dims(head * 16, 0), 1)
    row = gl.arange(0, 64 // BLOCKS, layout=gl.SliceLayout(1, L2))
    place_rotary = (AT[0] + row * 16)[:, None] + (gl.arange(0, 4, layout=gl.SliceLayout(0, L2)) * 4)[None, :]
    both = gl.join(m, total)
    LB: gl.constexpr = both.type.layout
    place_both = (AT[1] + gl.arange(0, 8, layout=gl.SliceLayout(1, LB)) * 8)[:, None] + (
        gl.arange(0, 2, layout=gl.SliceLayout(0, LB)) * 4
    )[None, :]
    if PAIR:
        await_cluster()
        there = address_in(given, 1 - block)
        there_barriers = address_in(barriers, 1 - block)
    else:
        there_barriers = barriers
    # To the other block first, since that is the longer way
    for i in gl.static_range(1, FINISHERS):
        give_part(
            parts, rotary_parts, both, place, place_rotary, place_both, given, barriers, there, there_barriers, block,
            order_of(i, TEAM, FINISHERS), TEAM, PAIR,
        )  # fmt: skip
    if PAIR:
        given += TEAM * 3 * AT[2]
    wait(barriers + TEAM * 8, 0)
    ms, totals, xs, ys = (m,), (total,), (x,), (y,)
    for k in gl.static_range(FINISHERS - 1):
        its_m, its_total = gl.split(take(given + (k * AT[2] + place_both), 4))
        ms += (gl.convert_layout(its_m, LA, assert_trivial=True),)
        totals += (gl.convert_layout(its_total, LA, assert_trivial=True),)
        xs += (take(given + (k * AT[2] + place), 4),)
        ys += (take(given + (k * AT[2] + place_rotary), 1),)
    for k in gl.static_range(1, FINISHERS):
        m = gl.maximum(m, ms[k])
    total = gl.zeros_like(total)
    weights = ()
    for k in gl.static_range(FINISHERS):
        weights += (exp2(ms[k] - m),)
        total += totals[k] * weights[k]
    lse, factor = weigh(m, total, sink, HAS_SINK, FINAL)
    x, y = gl.zeros_like(x), gl.zeros_like(y)
    for k in gl.static_range(FINISHERS):
        weight = weights[k] * factor
        by_head = own_heads(weight, TEAM, gl.SliceLayout(0, gl.SliceLayout(0, L3)))
        x += xs[k] * gl.expand_dims(gl.expand_dims(by_head, 0), 0)
        y += ys[k] * own_heads(weight, TEAM, gl.SliceLayout(0, L2))[None, :]
    write_part(x, y, out_row_ptr, stride_head, head_first, block, TEAM, heads, BLOCKS)
    if TEAM == 0:
        head = head_first + gl.arange(0, 8, layout=LA)
        gl.store(lse_row_ptr + head, lse, mask=(head < heads) & (block == 0))


@gluon.constexpr_function
def order_of(i, team, finishers):
    """Whom a team gives as the i-th: how far on, the other block's teams first."""
    return sorted(range(1, finishers), key=lambda k: (team + k) // 2 % (finishers // 2) == 0)[i - 1]


@gluon.constexpr_function
def part_layout(warps, columns):
    """A part of the result, [4, columns]: a lane has 8 neighbouring columns of a head, a warp whole groups."""
    registers = bits(0, 3, 1, 2) + bits(6 + log2(warps), log2(columns) - 6 - log2(warps), 1, 2)
    return gl.DistributedLinearLayout(
        registers, bits(0, 2, 0, 2) + bits(3, 3, 1, 2), bits(6, log2(warps), 1, 2), [], [4, columns]
    )


@gluon.jit
def write_part(
    x, y, out_row_ptr, stride_head, head_first, block, TEAM: gl.constexpr, heads, BLOCKS: gl.constexpr
):
    """Write what a team finishes: x [8 // BLOCKS, 64, 4] and rotary y [64 // BLOCKS, 4]."""
    DTYPE: gl.constexpr = out_row_ptr.dtype.element_ty
    L2: gl.constexpr = y.type.layout
    COLUMNS: gl.constexpr = 512 // BLOCKS
    O2: gl.constexpr = part_layout(gl.num_warps(), COLUMNS)
    # Rows of the product back to columns of the row: see `columns_by_candidate`
    x = gl.permute(gl.reshape(x.to(DTYPE), [8 // BLOCKS, 2, 2, 2, 8, 4]), (5, 0, 4, 1, 2, 3))
    x = gl.convert_layout(gl.reshape(x, [4, COLUMNS]), O2, assert_trivial=True)
    head = head_first + 2 * gl.arange(0, 4, layout=gl.SliceLayout(1, O2)) + TEAM
    column = block * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, O2))
    mask = (head < heads)[:, None] & (column < 448)[None, :]
    gl.store(out_row_ptr + head.to(gl.int64)[:, None] * stride_head + column[None, :], x, mask=mask)
    head = head_first + 2 * gl.arange(0, 4, layout=gl.SliceLayout(0, L2)) + TEAM
    i = gl.arange(0, 64 // BLOCKS, layout=gl.SliceLayout(1, L2))
    column = 448 + i
    if BLOCKS == 2:
        column = 448 + i // 8 * 16 + block * 8 + i % 8
    gl.store(
        out_row_ptr + head.to(gl.int64)[None, :] * stride_head + column[:, None],
        y.to(DTYPE),
        mask=(head < heads)[None, :],
    )
