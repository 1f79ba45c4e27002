"""A tile's rows on their way from the cache to shared memory, in Gluon: asked for as words, stored as bfloat16."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.sparse_mla._candidates import ABSENT
from kernels.sparse_mla._dequantize import HALVES, PACKED, SELECTOR


@gluon.constexpr_function
def tile_layouts(block_t: int, num_warps: int):
    """Who holds what of a tile: words [block_t, 8, 16], rotary words [block_t, 32], columns [block_t, 8, 64] and
    [block_t, 512].

    A thread holds 16 columns of a row in each of eight groups of 64: seven are scaled, the last is rotary. Where the
    rows are enough for all warps, the group is a register's number, so that the compiler knows which is which.
    """
    rows = min(num_warps, block_t // 8)
    groups = num_warps // rows
    return (
        gl.BlockedLayout([1, 1, 4], [8, 1, 4], [rows, groups, 1], [2, 1, 0]),
        gl.SliceLayout(1, gl.BlockedLayout([1, 1, 8], [8, 1, 4], [rows, groups, 1], [2, 1, 0])),
        gl.BlockedLayout([1, 1, 16], [8, 1, 4], [rows, groups, 1], [2, 1, 0]),
        gl.BlockedLayout([1, 16], [8, 4], [rows, groups], [1, 0]),
    )


@gluon.jit
def fetch_tile(addresses, kv_ptr, tile, UNIT: gl.constexpr, BLOCK_T: gl.constexpr):
    """Start loading a tile: scaled words int32 [BLOCK_T, 8, 16] (group 7 is empty), rotary int32 [BLOCK_T, 32].

    The words stay words until the tile is stored: taking one apart would wait for it.
    """
    LAYOUTS: gl.constexpr = tile_layouts(BLOCK_T, gl.num_warps())
    P3: gl.constexpr = LAYOUTS[0]
    R2: gl.constexpr = LAYOUTS[1]
    rows = addresses.index(tile)
    address = rows.load(gl.SliceLayout(1, gl.SliceLayout(2, P3)))
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, P3)))
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, P3)))
    row_ptr = (kv_ptr + address * UNIT).to(gl.pointer_type(gl.int32))
    mask = (address != ABSENT)[:, None] & (group < 7)[None, :]
    columns = gl.expand_dims(gl.expand_dims(group, 0) * 16, 2) + gl.expand_dims(gl.expand_dims(word, 0), 1)
    nope = gl.load(gl.expand_dims(row_ptr[:, None], 2) + columns, mask=gl.expand_dims(mask, 2), other=0)
    address = rows.load(gl.SliceLayout(1, R2))
    row_ptr = (kv_ptr + address * UNIT).to(gl.pointer_type(gl.int32))
    word = 112 + gl.arange(0, 32, layout=gl.SliceLayout(0, R2))
    rope = gl.load(row_ptr[:, None] + word[None, :], mask=(address != ABSENT)[:, None], other=0)
    return nope, rope


@gluon.constexpr_function
def rows_layout(block_t: int, num_warps: int):
    """What belongs to a row as a whole, [block_t]: each thread has the rows of which it holds words."""
    return gl.SliceLayout(1, gl.SliceLayout(2, tile_layouts(block_t, num_warps)[0]))


@gluon.jit
def store_tile(k_smem, nope, rope, scale_bytes, late, BLOCK_T: gl.constexpr):
    """Dequantise a fetched tile into its shared buffer, bfloat16 [BLOCK_T, 512].

    Args:
        nope, rope: as `fetch_tile` leaves them.
        scale_bytes: int64 [BLOCK_T], in `rows_layout`.
        late: int32 likewise, of any value, or 0. No word is taken apart before this is there: ptxas takes words apart
            as early as it can, and then waits for the first of them before it asks for the last.
    """
    LAYOUTS: gl.constexpr = tile_layouts(BLOCK_T, gl.num_warps())
    P3: gl.constexpr = LAYOUTS[0]
    K3: gl.constexpr = LAYOUTS[2]
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, P3)))[None, :]
    half = ((scale_bytes[:, None] >> (group * 8)).to(gl.int32) & 0xFF) << 7
    scale, _ = gl.broadcast(gl.expand_dims(half | (half << 16), 2), nope)
    selector, _ = gl.broadcast(gl.expand_dims(((late & -65536) | SELECTOR)[:, None], 2), nope)
    v0, v1, v2, v3 = gl.inline_asm_elementwise(
        PACKED, "=h,=h,=h,=h,r,r,r", [nope, scale, selector],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=1,
    )  # fmt: skip
    k = gl.reshape(gl.join(gl.join(v0, v2), gl.join(v1, v3)), [BLOCK_T, 8, 64])
    k = gl.convert_layout(k, K3, assert_trivial=True)
    low, high = gl.inline_asm_elementwise(
        HALVES, "=h,=h,r", [rope], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=1
    )
    r = gl.convert_layout(
        gl.reshape(gl.join(low, high), [BLOCK_T, 64]), gl.SliceLayout(1, K3), assert_trivial=True
    )
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, K3)))
    rotary = gl.expand_dims(gl.expand_dims(group == 7, 0), 2)
    k = gl.reshape(gl.where(rotary, gl.expand_dims(r, 1), k), [BLOCK_T, 512])
    k_smem.store(gl.convert_layout(k, LAYOUTS[3], assert_trivial=True))
