"""Which candidates a block has and where they lie: from a row's indices to tables in shared memory, in Gluon.

A row's candidates are cut into tiles, the tiles shared out among the splits. For a segment of tiles, one thread a
candidate works out where its bytes and scales lie; everybody else looks it up.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

# No address: far below any distance between two caches, and still in range when multiplied by UNIT
ABSENT = gl.constexpr(-(1 << 58))


@gluon.jit
def load_length(length_ptr, row, stride, capacity, HAS_LENGTH: gl.constexpr):
    """The number of candidates of `row` that count, between 0 and `capacity`."""
    length = capacity
    if HAS_LENGTH:
        length = gl.minimum(gl.maximum(gl.load(length_ptr + row * stride).to(gl.int32), 0), capacity)
    return length


@gluon.jit
def share_of_row(
    length_ptr, extra_length_ptr, row, stride_length, stride_extra_length, topk, extra_topk, BLOCK_T: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr,
):  # fmt: skip
    """The row's live lengths, tiles of its main cache, and the first and the last tile (excluded) of this split."""
    length = load_length(length_ptr, row, stride_length, topk, HAS_LENGTH)
    tiles = (length + BLOCK_T - 1) // BLOCK_T
    all_tiles = tiles
    extra_length = 0
    if HAS_EXTRA:
        extra_length = load_length(extra_length_ptr, row, stride_extra_length, extra_topk, HAS_EXTRA_LENGTH)
        all_tiles += (extra_length + BLOCK_T - 1) // BLOCK_T
    split = gl.program_id(2)
    first = split * all_tiles // gl.num_programs(2)
    last = (split + 1) * all_tiles // gl.num_programs(2)
    return length, extra_length, tiles, first, last


@gluon.jit
def load_slots(
    indices_ptr, length, extra_indices_ptr, extra_length, first, last, tiles,
    HAS_EXTRA: gl.constexpr, BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """Slots of the candidates of a segment of tiles, one a thread; negative where absent."""
    j = gl.arange(0, SEGMENT, layout=T1)
    tile = first + j // BLOCK_T
    position = tile * BLOCK_T + j % BLOCK_T
    in_range = tile < last
    mask = in_range & (position < length)
    row_ptr = indices_ptr + position
    if HAS_EXTRA:
        # One load from either row: merging two would wait for both
        extra_position = position - tiles * BLOCK_T
        extra = tile >= tiles
        row_ptr = gl.where(extra, extra_indices_ptr + extra_position, row_ptr)
        mask = in_range & gl.where(extra, extra_position < extra_length, position < length)
    return gl.load(row_ptr, mask=mask, other=-1)


@gluon.jit
def locate(
    slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """Byte offsets from `kv_ptr` of the slots' token rows and scale rows.

    The extra cache is reached from the same pointer, through the distance between the two.
    """
    slot = gl.maximum(slot, 0)
    page = slot // PAGE_SIZE
    size = PAGE_SIZE
    distance = 0
    if HAS_EXTRA:
        extra = first + gl.arange(0, SEGMENT, layout=T1) // BLOCK_T >= tiles
        if EXTRA_PAGE_SIZE != PAGE_SIZE:
            page = gl.where(extra, slot // EXTRA_PAGE_SIZE, page)
            size = gl.where(extra, EXTRA_PAGE_SIZE, PAGE_SIZE)
        stride_page = gl.where(extra, stride_extra_page, stride_page)
        distance = gl.where(extra, extra_kv_ptr.to(gl.int64) - kv_ptr.to(gl.int64), 0)
    offset = slot - page * size
    base = page.to(gl.int64) * stride_page + distance
    return base + offset * 576, base + (576 * size + offset * 8)


@gluon.jit
def load_scales(kv_ptr, slot, scale):
    """The eight scale bytes of each candidate as two words; 0 where there is no candidate."""
    scale_ptr = (kv_ptr + scale).to(gl.pointer_type(gl.int32))
    low = gl.load(scale_ptr, mask=slot >= 0, other=0)
    high = gl.load(scale_ptr + 1, mask=slot >= 0, other=0)
    return low, high


@gluon.jit
def packed(low, high):
    """Two words of scale bytes as an int64."""
    return (high.to(gl.int64) << 32) | (low.to(gl.int64) & 0xFFFFFFFF)


@gluon.jit
def fill_tables(address_smem, bias_smem, slot, token, UNIT: gl.constexpr):
    """Write where each candidate of a segment lies and what masks its score.

    Addresses are in units of UNIT bytes from `kv_ptr`, ABSENT where there is no candidate. They may be negative:
    the extra cache can lie before the main one.
    """
    valid = slot >= 0
    address_smem.store(gl.where(valid, token // UNIT, ABSENT))
    bias_smem.store(gl.where(valid, 0.0, -float("inf")))


@gluon.jit
def copy_scales(scale_smem, kv_ptr, slot, scale):
    """Start copying the eight scale bytes of each candidate, int64; 0 where there is no candidate. A group of copies.

    Through registers, they would be waited for before the last rows are asked for.
    """
    W2: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [gl.num_warps(), 1], [1, 0])
    LW: gl.constexpr = gl.SliceLayout(1, W2)
    words = scale_smem._reinterpret(gl.int32, [slot.shape[0], 2], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    scale_ptr = (kv_ptr + gl.convert_layout(scale, LW, assert_trivial=True)).to(gl.pointer_type(gl.int32))
    word = gl.arange(0, 2, layout=gl.SliceLayout(0, W2))[None, :]
    mask = gl.convert_layout(slot >= 0, LW, assert_trivial=True)[:, None]
    async_copy.async_copy_global_to_shared(words, scale_ptr[:, None] + word, mask=mask)
    async_copy.commit_group()


@gluon.jit
def fill_segment(
    address_smem, bias_smem, kv_ptr, extra_kv_ptr, indices_ptr, extra_indices_ptr,
    length, extra_length, first, last, tiles, stride_page, stride_extra_page,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, UNIT: gl.constexpr, HAS_EXTRA: gl.constexpr,
    BLOCK_T: gl.constexpr, SEGMENT: gl.constexpr, T1: gl.constexpr,
):  # fmt: skip
    """The tables of the segment that starts with tile `first`, from its indices on, but for the scales.

    Returns:
        The candidates' slots, and where their scales lie.
    """
    slot = load_slots(
        indices_ptr, length, extra_indices_ptr, extra_length, first, last, tiles, HAS_EXTRA, BLOCK_T, SEGMENT, T1
    )  # fmt: skip
    token, scale = locate(
        slot, kv_ptr, stride_page, extra_kv_ptr, stride_extra_page, first, tiles,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T, SEGMENT, T1,
    )  # fmt: skip
    fill_tables(address_smem, bias_smem, slot, token, UNIT)
    return slot, scale
