"""Top-k to physical indices: PyTorch's over the whole row, and a radix selection that follows the lengths.

`torch.topk` reads `max_seq_len` columns whatever is live. Rung 2 reads live entries only. Order-preserving
keys make the k-th largest score a 32-bit number, found from its top bit down: one counting pass decides one
bit, and the search ends early once exactly k entries lie at or above the trial value. A pass over a few
thousand entries reads the L1 cache, so that passes cost less than building histograms would. A short row is
one program's work. A long one is cut into slices of about sqrt(length * k) entries; each slice keeps its own
best k, in order of position, and a second launch selects among those. No counters to zero, nothing to
race; the number of launches follows from the batch, never from the width. Chapter 6 measures it.
"""

import torch
import triton
import triton.language as tl

from .layout import PAGE_ENTRIES, live_lengths


def torch_topk(logits, seq_lens, block_table, out) -> torch.Tensor:
    """Baseline: mask the tail, select among every column. Equal scores and NaN fall as PyTorch ranks them.

    Arguments as `indexer_topk` after its checks; `out` is int32 [B, k].
    """
    k = out.shape[1]
    width = logits.shape[1]
    lengths = live_lengths(seq_lens, width, block_table)
    position = torch.arange(width, device=logits.device)
    masked = torch.where(position[None, :] < lengths[:, None], logits, -torch.inf)
    best = torch.topk(masked, min(k, width), dim=1).indices
    # A row of k entries or fewer is taken whole: -inf cannot tell a live entry from the tail.
    identity = torch.arange(best.shape[1], device=logits.device).expand_as(best)
    best = torch.where((lengths <= k)[:, None], identity, best)
    live = best < lengths[:, None]
    page = block_table.gather(1, (best // PAGE_ENTRIES).clamp(max=block_table.shape[1] - 1))
    slot = page * PAGE_ENTRIES + (best % PAGE_ENTRIES).to(torch.int32)
    out.fill_(-1)
    out[:, : best.shape[1]] = torch.where(live & (page >= 0), slot, -1)
    return out


@triton.jit
def split_row(length, k, slices, CHUNK: tl.constexpr, ALONE: tl.constexpr):
    """Entries of a slice, and how many slices a row has: 1 up to ALONE entries."""
    balanced = tl.maximum(tl.sqrt(length.to(tl.float32) * k).to(tl.int32), tl.cdiv(length, slices))
    shared = (length > ALONE) & (slices > 1)
    # Whole chunks, so that a slice begins where 16-byte loads may.
    entries = tl.cdiv(tl.maximum(tl.where(shared, balanced, length), 1), CHUNK) * CHUNK
    return entries, tl.cdiv(length, entries)


@triton.jit
def decode_key(key):
    """The score whose order-preserving 32-bit key is `key` (int64); keys below -inf's decode to -inf."""
    signed = (key - 2147483648).to(tl.int32)
    bits = tl.where(signed >= 0, signed, signed ^ 0x7FFFFFFF)
    return tl.where(key < 0x007FFFFF, float("-inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def count_at_least(scores_ptr, count, threshold, CHUNK: tl.constexpr):
    """How many of the first `count` scores are at or above `threshold`; NaN ranks as -inf."""
    index = tl.arange(0, CHUNK)
    # [CHUNK]
    hits = tl.zeros((CHUNK,), tl.int32)
    whole = count // CHUNK * CHUNK
    # Whole chunks need no mask, and so load 16 bytes at a time.
    for start in range(0, whole, CHUNK):
        hits += (tl.load(scores_ptr + start + index) >= threshold).to(tl.int32)
    if whole < count:
        live = whole + index < count
        hits += (tl.load(scores_ptr + whole + index, mask=live, other=float("nan")) >= threshold).to(tl.int32)
    return tl.where(threshold == float("-inf"), count, tl.sum(hits, 0))


@triton.jit
def find_threshold(scores_ptr, count, k, CHUNK: tl.constexpr):
    """The k-th largest of `count` scores -> (threshold, ties to take, whether `>=` takes exactly k).

    With no more than k scores every one is taken.
    """
    key = tl.full((), 0, tl.int64)
    step = tl.full((), 2147483648, tl.int64)
    at_least = count
    above = count * 0
    while (step > 0) & (at_least > k):
        hits = count_at_least(scores_ptr, count, decode_key(key + step), CHUNK)
        enough = hits >= k
        key = tl.where(enough, key + step, key)
        at_least = tl.where(enough, hits, at_least)
        above = tl.where(enough, above, hits)
        step = step >> 1
    return decode_key(key), k - above, at_least <= k


@triton.jit
def load_scores(scores_ptr, index, count):
    """Scores at `index`, NaN as -inf; also -inf past `count`, where nothing is read."""
    score = tl.load(scores_ptr + index, mask=index < count, other=float("-inf"))
    return tl.where(score != score, float("-inf"), score)


@triton.jit
def choose(score, live, threshold, ties, exact, above_before, ties_before):
    """Which of a chunk's scores are taken, and the output slot of each, in order of position.

    Returns the choice, the slots, and both running counts after this chunk.
    """
    above = live & ((score > threshold) | (exact & (score == threshold)))
    tie = live & (score == threshold) & (exact == 0)
    # Two counts in one scan; a chunk has fewer than 2^15 entries.
    packed = above.to(tl.int32) + tie.to(tl.int32) * 65536
    scan = tl.cumsum(packed, 0)
    total = tl.sum(packed, 0)
    tie_rank = ties_before + scan // 65536
    chosen = above | (tie & (tie_rank <= ties))
    slot = above_before + scan % 65536 + tl.minimum(tie_rank, ties) - 1
    return chosen, slot, above_before + total % 65536, ties_before + total // 65536


@triton.jit
def store_physical(out_ptr, slot, position, chosen, table_ptr, stride_table_p, PAGE: tl.constexpr):
    """Write page * PAGE + entry of the chosen positions; -1 where the page is negative."""
    page = tl.load(table_ptr + (position // PAGE) * stride_table_p, mask=chosen, other=-1)
    tl.store(out_ptr + slot, tl.where(page >= 0, page * PAGE + position % PAGE, -1), mask=chosen)


@triton.jit
def select_slices_kernel(
    scores_ptr, seq_lens_ptr, block_table_ptr, out_ptr, best_scores_ptr, best_positions_ptr,
    k, slices, capacity,
    stride_scores_b, stride_lens, stride_table_b, stride_table_p, stride_out_b,
    PAGE: tl.constexpr, CHUNK: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Grid: (batch * slices,). A row of one slice is finished here, others leave k candidates a slice."""
    row = (tl.program_id(0) // slices).to(tl.int64)
    part = tl.program_id(0) % slices
    length = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + row * stride_lens), 0), capacity)
    entries, parts = split_row(length, k, slices, CHUNK, ALONE)
    index = tl.arange(0, CHUNK)
    out_row = out_ptr + row * stride_out_b
    table_row = block_table_ptr + row * stride_table_b
    if part == 0:
        tl.store(out_row + index, tl.full((CHUNK,), -1, tl.int32), mask=(index >= length) & (index < k))
    if part < parts:
        begin = part * entries
        count = tl.minimum(length - begin, entries)
        slice_ptr = scores_ptr + row * stride_scores_b + begin
        threshold, ties, exact = find_threshold(slice_ptr, count, k, CHUNK)
        best = (row * slices + part) * k
        above_before = count * 0
        ties_before = count * 0
        for start in range(0, count, CHUNK):
            score = load_scores(slice_ptr, start + index, count)
            chosen, slot, above_before, ties_before = choose(
                score, start + index < count, threshold, ties, exact, above_before, ties_before
            )
            position = begin + start + index
            if parts == 1:
                store_physical(out_row, slot, position, chosen, table_row, stride_table_p, PAGE)
            else:
                tl.store(best_scores_ptr + best + slot, score, mask=chosen)
                tl.store(best_positions_ptr + best + slot, position, mask=chosen)


@triton.jit
def select_candidates_kernel(
    seq_lens_ptr, block_table_ptr, out_ptr, best_scores_ptr, best_positions_ptr,
    k, slices, capacity,
    stride_lens, stride_table_b, stride_table_p, stride_out_b,
    PAGE: tl.constexpr, CHUNK: tl.constexpr, ALONE: tl.constexpr, MERGE_CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid: (batch,). Selects among the candidates of a row's slices; rows of one slice are done."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + row * stride_lens), 0), capacity)
    entries, parts = split_row(length, k, slices, CHUNK, ALONE)
    if parts > 1:
        # Every slice but the last has at least k entries: the candidates lie without a gap.
        last = parts - 1
        count = last * k + tl.minimum(length - last * entries, k)
        scores_row = best_scores_ptr + row * slices * k
        positions_row = best_positions_ptr + row * slices * k
        threshold, ties, exact = find_threshold(scores_row, count, k, MERGE_CHUNK)
        index = tl.arange(0, MERGE_CHUNK)
        above_before = count * 0
        ties_before = count * 0
        for start in range(0, count, MERGE_CHUNK):
            score = load_scores(scores_row, start + index, count)
            chosen, slot, above_before, ties_before = choose(
                score, start + index < count, threshold, ties, exact, above_before, ties_before
            )
            position = tl.load(positions_row + start + index, mask=chosen, other=0)
            store_physical(
                out_ptr + row * stride_out_b, slot, position, chosen,
                block_table_ptr + row * stride_table_b, stride_table_p, PAGE,
            )  # fmt: skip


def radix_launches(logits, seq_lens, block_table, out, workspace, *, tile, slices):
    """(kernel, grid, arguments, warps) of each launch, for launching and for compilation alike."""
    batch, k = out.shape
    best_scores, best_positions = workspace[0].view(torch.float32), workspace[1]
    shared = dict(
        seq_lens_ptr=seq_lens, block_table_ptr=block_table, out_ptr=out,
        best_scores_ptr=best_scores, best_positions_ptr=best_positions,
        k=k, slices=slices, capacity=min(logits.shape[1], block_table.shape[1] * PAGE_ENTRIES),
        stride_lens=seq_lens.stride(0), stride_table_b=block_table.stride(0),
        stride_table_p=block_table.stride(1), stride_out_b=out.stride(0),
        PAGE=PAGE_ENTRIES, CHUNK=tile.chunk, ALONE=tile.alone,
    )  # fmt: skip
    first = dict(scores_ptr=logits, stride_scores_b=logits.stride(0), **shared)
    launches = [(select_slices_kernel, (batch * slices,), first, tile.num_warps)]
    if slices > 1:
        second = dict(MERGE_CHUNK=tile.merge_chunk, **shared)
        launches.append((select_candidates_kernel, (batch,), second, tile.merge_warps))
    return launches


def radix_topk(logits, seq_lens, block_table, out, workspace, *, tile, slices) -> torch.Tensor:
    """Launch the selection; arguments as `indexer_topk` after its checks.

    Args:
        out: int32 [B, k]; each row's indices in ascending order of entry position, then -1.
        workspace: int32 [2, B, slices, k], may hold anything.
        tile: `plan.TopkTile`; `slices` from `plan.topk_slices`.
    """
    for kernel, grid, arguments, warps in radix_launches(
        logits, seq_lens, block_table, out, workspace, tile=tile, slices=slices
    ):
        kernel[grid](**arguments, num_warps=warps)
    return out
