"""How rows of the cache are asked for, past the queue of loads, in Gluon.

The copy engine takes runs of bytes. A row is 576 of them in one place, so each of the threads that ask has a
candidate, and asks for its row, its scales and nothing else.

A buffer's barrier counts two arrivals a candidate: one owes the row's bytes, the other comes with the scales. Where
there is no candidate, the thread writes zeros, since a weight of 0 times a NaN of an older row would be NaN.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._candidates import locate
from kernels.sparse_mla._copied_rows import ROW_BYTES, row_offset
from kernels.sparse_mla._layouts import bits

ARRIVALS = gl.constexpr(2)


@gluon.constexpr_function
def ask_text(row_bytes):
    """PTX for one candidate. $1: whether there is one. $2 and $3: where its row goes and comes from; $4: the barrier;
    $5 and $6: where its scales go and come from; $7: where its bias goes. $8: lanes of a warp that ask.
    """
    zeros = "\n".join(
        f"st.shared.v4.b32 [$2+{16 * i}], {{zero, zero, zero, zero}};" for i in range(row_bytes // 16)
    )
    return f"""
{{
.reg .pred asks, present, absent;
.reg .u32 lane;
.reg .b32 zero, bias;
mov.u32 lane, %laneid;
setp.lt.u32 asks, lane, $8;
setp.ne.and.s32 present, $1, 0, asks;
setp.eq.and.s32 absent, $1, 0, asks;
mov.b32 zero, 0;
selp.b32 bias, zero, 0xff800000, present;
@asks st.shared.b32 [$7], bias;
@present cp.async.ca.shared.global [$5], [$6], 8;
@!absent bra asked;
st.shared.v2.b32 [$5], {{zero, zero}};
{zeros}
mbarrier.arrive.shared::cta.b64 _, [$4];
asked:
@present mbarrier.arrive.expect_tx.shared::cta.b64 _, [$4], {row_bytes};
@asks cp.async.mbarrier.arrive.noinc.shared.b64 [$4];
@present cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$2], [$3], {row_bytes}, [$4];
}}
// dummy $0
"""


PREFETCH = gl.constexpr("""
{
.reg .pred there;
setp.ne.s32 there, $2, 0;
@there prefetch.global.L2 [$1];
}
// dummy $0
""")


@gluon.jit
def prefetch_indices(
    indices_ptr, extra_indices_ptr, topk, extra_topk, first, last, tiles,
    HAS_EXTRA: gl.constexpr, BLOCK_T: gl.constexpr,
):  # fmt: skip
    """Bring the indices of a share's first tiles into L2, 32 bytes a thread.

    The kernel before may still be writing them: nothing is read, and L2 is where it writes to.
    """
    LT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    position = first * BLOCK_T + 8 * gl.arange(0, 32 * gl.num_warps(), layout=LT)
    there = position < gl.minimum(last * BLOCK_T, topk)
    pointer = indices_ptr + position
    if HAS_EXTRA:
        extra = position - tiles * BLOCK_T
        there |= (position < last * BLOCK_T) & (extra >= 0) & (extra < extra_topk)
        pointer = gl.where(extra >= 0, extra_indices_ptr + extra, pointer)
    gl.inline_asm_elementwise(
        PREFETCH, "=r,l,r", [pointer.to(gl.int64), there.to(gl.int32)], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.constexpr_function
def asking_layout(rows: int, warps: int):
    """Candidates of a tile, [rows]: each warp has as many, a lane one or none of its own."""
    log_rows, log_warps = rows.bit_length() - 1, warps.bit_length() - 1
    own = log_rows - log_warps
    return gl.DistributedLinearLayout(
        [], bits(0, own, 0, 1) + [[0]] * (5 - own), bits(own, log_warps, 0, 1), [], [rows]
    )


@gluon.jit
def ask_tile(
    slot, tile, rows, scale_bytes, biases, barrier,
    kv_ptr, extra_kv_ptr, tiles, stride_page, stride_extra_page,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """Ask for a tile's rows and scales, from its candidates' slots in `T1`, an `asking_layout`.

    Args:
        rows, scale_bytes, biases, barrier: addresses of the buffer for rows, 8 bytes of scales a candidate, float32 0
            or -inf a candidate, and of the barrier that tells when all are there.
    """
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, tile, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, BLOCK_T, T1,
    )  # fmt: skip
    TEXT: gl.constexpr = ask_text(ROW_BYTES)
    j = gl.arange(0, BLOCK_T, layout=T1)
    same = gl.zeros([BLOCK_T], gl.int32, layout=T1)
    gl.inline_asm_elementwise(
        TEXT, "=r,r,r,l,r,r,l,r,r,~{memory}",
        [
            (slot >= 0).to(gl.int32), rows + row_offset(j), (kv_ptr + token).to(gl.int64), same + barrier,
            scale_bytes + j * 8, (kv_ptr + scale).to(gl.int64), biases + j * 4, same + BLOCK_T // gl.num_warps(),
        ], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
