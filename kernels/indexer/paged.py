"""Rung 3: one Triton kernel that follows `seq_lens` on the device, so that no cap is needed.

What changed: nothing is gathered, converted or written that is not live; the `[B, S, 64]` scores stay in
registers; the FP8 keys go to the tensor cores as they are. What it attacks: work sized by capacity. The grid
depends on the batch and the device alone. Every program reads the lengths of its group of rows, counts their
pages, and takes an equal run of them, so that one long row among short ones is shared by all. Chapter 6
measures it.

Tokens are the rows of the product and heads its columns: the head sum then runs along registers of one thread
and two shuffles, where the transposed product would need a sum over warps.

The kernel takes 3 to 10 us, of which its launch is a large part: where the GPU can, it is launched while its
predecessor still runs, and waits for it before the first read.
"""

import triton
import triton.language as tl

from .layout import INDEX_DIM, INDEX_HEADS, PAGE_ENTRIES


@triton.jit
def load_pages(table_ptr, stride_table_p, step, num_pages, PAGE: tl.constexpr, BLOCK_T: tl.constexpr):
    """First and last page of a step, the same one if a step is one page; -1 past the row's last."""
    column = step * (BLOCK_T // PAGE)
    page = tl.load(table_ptr + column * stride_table_p, mask=column < num_pages, other=-1)
    if BLOCK_T == PAGE:
        return page, page
    else:
        column += 1
        return page, tl.load(table_ptr + column * stride_table_p, mask=column < num_pages, other=-1)


@triton.jit
def score_tile(
    cache_ptr, page, second, page_words, queries, weights,
    PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_T: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Scores of the tokens of one page or two; -inf where the page is negative -> [BLOCK_T]."""
    token = tl.arange(0, BLOCK_T)
    entry = token % PAGE
    dim = tl.arange(0, DIM)
    # Strides come in words of 4 bytes, so that the compiler knows the alignment of every legal page.
    offset = tl.maximum(page, 0).to(tl.int64) * page_words * 4
    if BLOCK_T == PAGE:
        key_base = (cache_ptr + offset).to(tl.pointer_type(tl.float8e4nv))
        # [BLOCK_T, DIM]
        keys = tl.load(key_base + (entry[:, None] * DIM + dim[None, :]))
    else:
        # Two scalars and a choice: a vector of pages would be held in as many layouts as have a use for it.
        offset = tl.where(token < PAGE, offset, tl.maximum(second, 0).to(tl.int64) * page_words * 4)
        page = tl.where(token < PAGE, page, second)
        key_base = (cache_ptr + offset).to(tl.pointer_type(tl.float8e4nv))
        keys = tl.load(key_base[:, None] + (entry[:, None] * DIM + dim[None, :]))
    # [BLOCK_T]
    scale = tl.load((cache_ptr + offset + PAGE * DIM).to(tl.pointer_type(tl.float32)) + entry)
    if UPCAST:
        keys = keys.to(tl.float32)
    elif queries.dtype != tl.float8e4nv:
        keys = keys.to(queries.dtype)
    # [BLOCK_T, HEADS]
    per_head = tl.dot(keys, queries)
    # The maximum keeps NaN, as torch.relu does
    positive = tl.maximum(per_head, 0.0, propagate_nan=tl.PropagateNan.ALL)
    score = tl.sum(positive * weights[None, :], axis=1) * scale
    return tl.where(page >= 0, score, float("-inf"))


@triton.jit
def extra_before(share, each, extra, programs):
    """How many of the steps that do not divide evenly go to the programs before `share`.

    Spread evenly, shares begin where rows of equal length do: a program that changes rows waits for memory
    twice. With less than a step for each, the first programs take them, which start first, on SMs of their own.
    """
    return tl.where(each > 0, share * extra // programs, tl.minimum(share, extra))


@triton.jit
def paged_logits_kernel(
    q_ptr, cache_ptr, weights_ptr, seq_lens_ptr, block_table_ptr, out_ptr,
    batch, group_rows, programs_per_group, capacity,
    stride_q_b, stride_q_h, page_words, stride_w_b, stride_lens, stride_table_b, stride_table_p, stride_out_b,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr, BLOCK_T: tl.constexpr,
    UPCAST: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: (groups * programs_per_group,). A group is `group_rows` <= GROUP rows of the batch."""
    program = tl.program_id(0)
    group_start = (program // programs_per_group) * group_rows
    share = program % programs_per_group
    # [GROUP]
    index = tl.arange(0, GROUP)
    row_of = group_start + index
    row_mask = (index < group_rows) & (row_of < batch)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    lens = tl.load(seq_lens_ptr + row_of.to(tl.int64) * stride_lens, mask=row_mask, other=0)
    lens = tl.minimum(tl.maximum(lens, 0), capacity)
    steps = tl.cdiv(lens, BLOCK_T)
    ends = tl.cumsum(steps, 0)
    total = tl.sum(steps, 0)
    each, extra = total // programs_per_group, total % programs_per_group
    first = share * each + extra_before(share, each, extra, programs_per_group)
    last = (share + 1) * each + extra_before(share + 1, each, extra, programs_per_group)
    row_first = tl.sum((ends <= first).to(tl.int32), 0)
    row_stop = tl.sum((ends < last).to(tl.int32), 0) + 1
    row_stop = tl.where(first < last, row_stop, row_first)

    head = tl.arange(0, HEADS)
    dim = tl.arange(0, DIM)
    token = tl.arange(0, BLOCK_T)
    for local in range(row_first, row_stop):
        mine = index == local
        length = tl.sum(tl.where(mine, lens, 0), 0)
        row_steps = tl.cdiv(length, BLOCK_T)
        row_begin = tl.sum(tl.where(mine, ends, 0), 0) - row_steps
        low = tl.maximum(first - row_begin, 0)
        high = tl.minimum(last - row_begin, row_steps)
        if low < high:
            row = (group_start + local).to(tl.int64)
            table_row = block_table_ptr + row * stride_table_b
            out_row = out_ptr + row * stride_out_b
            num_pages = tl.cdiv(length, PAGE)
            # Page numbers are read a step ahead: keys and scales then prefetch STAGES deep without a wait.
            page, second = load_pages(table_row, stride_table_p, low, num_pages, PAGE, BLOCK_T)
            # [DIM, HEADS]
            queries = tl.load(q_ptr + row * stride_q_b + head[None, :] * stride_q_h + dim[:, None])
            if UPCAST:
                queries = queries.to(tl.float32)
            # [HEADS]
            weights = tl.load(weights_ptr + row * stride_w_b + head)
            # The queries' way into shared memory ends in a fence that the compiler puts ahead of the outermost
            # loop; this one, of a single turn in practice, keeps it out of the prefetch. On an H200 that alone costs
            # 0.2 to 0.5 us, but four programs of four stages then fill an SM: the fastest tile for long rows.
            for begin in range(low, high, 1048576):
                for step in tl.range(begin, tl.minimum(begin + 1048576, high), num_stages=STAGES):
                    next_page, next_second = load_pages(
                        table_row, stride_table_p, step + 1, num_pages, PAGE, BLOCK_T
                    )
                    score = score_tile(
                        cache_ptr, page, second, page_words, queries, weights, PAGE, DIM, BLOCK_T, UPCAST
                    )
                    position = step * BLOCK_T + token
                    tl.store(out_row + position, score, mask=position < length)
                    page = next_page
                    second = next_second


@triton.jit
def fill_tail_kernel(
    seq_lens_ptr, out_ptr,
    batch, capacity, width, stride_lens, stride_out_b,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: (cdiv(width, BLOCK) * batch,). Writes -inf from each row's length to `width`."""
    # One dimension: the others end at 65,535 programs, fewer than rows or blocks can be.
    row = (tl.program_id(0) % batch).to(tl.int64)
    start = tl.program_id(0) // batch * BLOCK
    length = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + row * stride_lens), 0), capacity)
    if length - start < BLOCK:
        position = start + tl.arange(0, BLOCK)
        inf = tl.full((BLOCK,), float("-inf"), tl.float32)
        tl.store(out_ptr + row * stride_out_b + position, inf, mask=(position >= length) & (position < width))


def paged_launch(q, index_cache, weights, seq_lens, block_table, out, *, tile, programs, upcast, overlap):
    """Grid and arguments of `paged_logits_kernel`, for its launch and for its compilation alike."""
    batch, width = out.shape
    groups = triton.cdiv(batch, tile.group_rows)
    group_rows, programs_per_group = triton.cdiv(batch, groups), triton.cdiv(programs, groups)
    if programs_per_group > group_rows:
        # A whole number of programs for rows of equal length; see `extra_before`.
        programs_per_group -= programs_per_group % group_rows
    arguments = dict(
        q_ptr=q, cache_ptr=index_cache, weights_ptr=weights, seq_lens_ptr=seq_lens,
        block_table_ptr=block_table, out_ptr=out,
        batch=batch, group_rows=group_rows, programs_per_group=programs_per_group,
        capacity=min(width, block_table.shape[1] * PAGE_ENTRIES),
        stride_q_b=q.stride(0), stride_q_h=q.stride(1), page_words=index_cache.stride(0) // 4,
        stride_w_b=weights.stride(0), stride_lens=seq_lens.stride(0), stride_table_b=block_table.stride(0),
        stride_table_p=block_table.stride(1), stride_out_b=out.stride(0),
        HEADS=INDEX_HEADS, DIM=INDEX_DIM, PAGE=PAGE_ENTRIES, GROUP=tile.group_rows, BLOCK_T=tile.block_t,
        UPCAST=upcast, STAGES=tile.num_stages, OVERLAP=overlap,
    )  # fmt: skip
    return (groups * programs_per_group,), arguments


def fill_tail_launch(seq_lens, out, capacity, block: int = 4096):
    """Grid and arguments of `fill_tail_kernel`."""
    batch, width = out.shape
    arguments = dict(
        seq_lens_ptr=seq_lens, out_ptr=out, batch=batch, capacity=capacity, width=width,
        stride_lens=seq_lens.stride(0), stride_out_b=out.stride(0), BLOCK=block,
    )  # fmt: skip
    return (triton.cdiv(width, block) * batch,), arguments


def paged_logits(
    q, index_cache, weights, seq_lens, block_table, out, *, tile, programs, fill_tail, upcast, overlap
):
    """Launch the kernel (and the tail's); arguments as `indexer_logits` after its checks.

    Args:
        seq_lens: [B].
        tile: `plan.LogitsTile`.
        programs: grid size asked for, from `plan.logits_programs`.
        fill_tail: write -inf past each length, O(max_seq_len); else those elements keep what they held.
        upcast: multiply in float32, as the interpreter must.
        overlap: start while the predecessor ends (programmatic dependent launch, sm_90 and later).
    """
    choices = dict(tile=tile, programs=programs, upcast=upcast, overlap=overlap)
    grid, arguments = paged_launch(q, index_cache, weights, seq_lens, block_table, out, **choices)
    options = {"launch_pdl": True} if overlap else {}
    paged_logits_kernel[grid](**arguments, num_warps=tile.num_warps, num_stages=tile.num_stages, **options)
    if fill_tail:
        grid, arguments = fill_tail_launch(seq_lens, out, arguments["capacity"])
        fill_tail_kernel[grid](**arguments, num_warps=4)
    return out
