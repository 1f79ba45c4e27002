"""Top-k to physical indices: PyTorch's over the whole row, and a radix selection that follows the lengths.

`torch.topk` reads `max_seq_len` columns whatever is live. Rung 2 reads live entries only. Order-preserving
keys make the k-th largest score a 32-bit number, found from its top bit down: one counting pass decides one
bit, and the search ends early once exactly k entries lie at or above the trial value. The keys stay in
registers, so that a pass is a comparison a key and one sum over the program, for which a warp has a single
instruction; passes that decide two or three bits count several times as much and took longer. A short row is
one program's work. A long one is cut into slices; each slice keeps its own best k, in order of position, and a
second launch selects among those. No counters to zero, nothing to race; the number of launches follows from
the batch, never from the width. Chapter 6 measures it.
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
def split_row(length, k, slices, CHUNK: tl.constexpr, HELD: tl.constexpr):
    """Entries of a slice, and how many slices a row has: 1 up to HELD entries."""
    # About sqrt(length * k) entries make both launches' work small; registers hold no more than HELD.
    balanced = tl.minimum(tl.sqrt(length.to(tl.float32) * k).to(tl.int32), HELD)
    balanced = tl.maximum(balanced, tl.cdiv(length, slices))
    shared = (length > HELD) & (slices > 1)
    # Whole chunks, so that a slice begins where 16-byte loads may.
    entries = tl.cdiv(tl.maximum(tl.where(shared, balanced, length), 1), CHUNK) * CHUNK
    return entries, tl.cdiv(length, entries)


@triton.jit
def encode_score(score):
    """int32 key in the order of the scores; NaN ranks as -inf, -0.0 equals 0.0, no key is the smallest int32."""
    bits = tl.where(score != score, float("-inf"), score).to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def load_chunk(ptr, start, count, CHUNK: tl.constexpr):
    """Elements `start` and on; nothing is read from `count` on."""
    index = start + tl.arange(0, CHUNK)
    # Whole chunks need no mask, and so load 16 bytes at a time.
    if start + CHUNK <= count:
        element = tl.load(ptr + index)
    else:
        element = tl.load(ptr + index, mask=index < count, other=0)
    return element


@triton.jit
def load_keys(ptr, start, count, KEYED: tl.constexpr, CHUNK: tl.constexpr):
    """A chunk of keys, from keys or from scores; from `count` on the smallest int32, below every key."""
    key = load_chunk(ptr, start, count, CHUNK)
    if not KEYED:
        key = encode_score(key)
    return tl.where(start + tl.arange(0, CHUNK) < count, key, -2147483648)


@triton.jit
def count_at_least(ptr, count, threshold, KEYED: tl.constexpr, CHUNK: tl.constexpr):
    """How many of the first `count` keys are at or above `threshold`."""
    hits = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, count, CHUNK):
        hits += (load_keys(ptr, start, count, KEYED, CHUNK) >= threshold).to(tl.int32)
    return tl.sum(hits, 0)


@triton.jit
def decide_bit(low, step, at_least, above, hits, k):
    """The search's state after a pass: `hits` keys lie at or above low + step."""
    enough = hits >= k
    low = tl.where(enough, low + step, low)
    return low, step >> 1, tl.where(enough, hits, at_least), tl.where(enough, above, hits)


@triton.jit
def search_held(ptr, count, k, KEYED: tl.constexpr, CHUNK: tl.constexpr):
    """`find_threshold` with all keys in registers, for up to CHUNK of them."""
    keys = load_keys(ptr, 0, count, KEYED, CHUNK)
    low = tl.full((), -2147483647, tl.int64)
    step = tl.full((), 2147483648, tl.int64)
    at_least = count
    above = count * 0
    while (step > 0) & (at_least > k):
        hits = tl.sum((keys >= (low + step).to(tl.int32)).to(tl.int32), 0)
        low, step, at_least, above = decide_bit(low, step, at_least, above, hits, k)
    return low.to(tl.int32), k - above, at_least <= k


@triton.jit
def search_streamed(ptr, count, k, KEYED: tl.constexpr, CHUNK: tl.constexpr):
    """`find_threshold` reading every key again in each pass, for any number of them."""
    low = tl.full((), -2147483647, tl.int64)
    step = tl.full((), 2147483648, tl.int64)
    at_least = count
    above = count * 0
    while (step > 0) & (at_least > k):
        hits = count_at_least(ptr, count, (low + step).to(tl.int32), KEYED, CHUNK)
        low, step, at_least, above = decide_bit(low, step, at_least, above, hits, k)
    return low.to(tl.int32), k - above, at_least <= k


@triton.jit
def find_threshold(ptr, count, k, KEYED: tl.constexpr, CHUNK: tl.constexpr, HELD: tl.constexpr):
    """The k-th largest of `count` keys -> (threshold, ties to take, whether `>=` takes exactly k).

    With no more than k keys every one is taken.
    """
    threshold = tl.full((), -2147483647, tl.int32)
    ties = k
    exact = count <= k
    if count > k:
        if count <= CHUNK:
            threshold, ties, exact = search_held(ptr, count, k, KEYED, CHUNK)
        elif count <= HELD:
            threshold, ties, exact = search_held(ptr, count, k, KEYED, HELD)
        else:
            threshold, ties, exact = search_streamed(ptr, count, k, KEYED, CHUNK)
    return threshold, ties, exact


@triton.jit
def choose(keys, live, threshold, ties, exact, above_before, ties_before):
    """Which of a chunk's keys are taken, and the output slot of each, in order of position.

    Returns the choice, the slots, and both running counts after this chunk.
    """
    above = live & ((keys > threshold) | (exact & (keys == threshold)))
    tie = live & (keys == threshold) & (exact == 0)
    # Two counts in one scan; a chunk has fewer than 2^15 entries.
    packed = above.to(tl.int32) + tie.to(tl.int32) * 65536
    scan = tl.cumsum(packed, 0)
    total = tl.sum(packed, 0)
    tie_rank = ties_before + scan // 65536
    chosen = above | (tie & (tie_rank <= ties))
    slot = above_before + scan % 65536 + tl.minimum(tie_rank, ties) - 1
    return chosen, slot, above_before + total % 65536, ties_before + total // 65536


@triton.jit
def load_physical(position, live, table_ptr, stride_table_p, PAGE: tl.constexpr):
    """page * PAGE + entry of the live positions; -1 where the page is negative."""
    column = (position // PAGE).to(tl.int64)
    page = tl.load(table_ptr + column * stride_table_p, mask=live, other=-1)
    return tl.where(page >= 0, page * PAGE + position % PAGE, -1)


@triton.jit
def select_slices_kernel(
    scores_ptr, seq_lens_ptr, block_table_ptr, out_ptr, best_keys_ptr, best_entries_ptr,
    batch, k, slices, capacity,
    stride_scores_b, stride_lens, stride_table_b, stride_table_p, stride_out_b,
    PAGE: tl.constexpr, CHUNK: tl.constexpr, HELD: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: (slices * batch,). A row of one slice is finished here, others leave k candidates a slice."""
    # First slices first: on short rows the other programs come and go while those search.
    row = (tl.program_id(0) % batch).to(tl.int64)
    part = tl.program_id(0) // batch
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    length = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + row * stride_lens), 0), capacity)
    entries, parts = split_row(length, k, slices, CHUNK, HELD)
    index = tl.arange(0, CHUNK)
    out_row = out_ptr + row * stride_out_b
    if (part == 0) & (length < k):
        tl.store(out_row + index, tl.full((CHUNK,), -1, tl.int32), mask=(index >= length) & (index < k))
    if part < parts:
        begin = part * entries
        count = tl.minimum(length - begin, entries)
        slice_ptr = scores_ptr + row * stride_scores_b + begin
        threshold, ties, exact = find_threshold(slice_ptr, count, k, False, CHUNK, HELD)
        best = (row * slices + part) * k
        target = tl.where(parts == 1, out_row, best_entries_ptr + best)
        above_before = count * 0
        ties_before = count * 0
        for start in range(0, count, CHUNK):
            live = start + index < count
            keys = load_keys(slice_ptr, start, count, False, CHUNK)
            # For all live entries rather than the chosen: these loads then pass while the choice is made.
            physical = load_physical(
                begin + start + index, live, block_table_ptr + row * stride_table_b, stride_table_p, PAGE
            )
            chosen, slot, above_before, ties_before = choose(
                keys, live, threshold, ties, exact, above_before, ties_before
            )
            tl.store(target + slot, physical, mask=chosen)
            tl.store(best_keys_ptr + best + slot, keys, mask=chosen & (parts > 1))


@triton.jit
def select_candidates_kernel(
    seq_lens_ptr, out_ptr, best_keys_ptr, best_entries_ptr,
    k, slices, capacity,
    stride_lens, stride_out_b,
    CHUNK: tl.constexpr, HELD: tl.constexpr, MERGE_CHUNK: tl.constexpr, MERGE_HELD: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Grid: (batch,). Selects among the candidates of a row's slices; rows of one slice are done."""
    row = tl.program_id(0).to(tl.int64)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    length = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + row * stride_lens), 0), capacity)
    entries, parts = split_row(length, k, slices, CHUNK, HELD)
    if parts > 1:
        # Every slice but the last has at least k entries: the candidates lie without a gap.
        last = parts - 1
        count = last * k + tl.minimum(length - last * entries, k)
        keys_row = best_keys_ptr + row * slices * k
        entries_row = best_entries_ptr + row * slices * k
        threshold, ties, exact = find_threshold(keys_row, count, k, True, MERGE_CHUNK, MERGE_HELD)
        index = tl.arange(0, MERGE_CHUNK)
        above_before = count * 0
        ties_before = count * 0
        for start in range(0, count, MERGE_CHUNK):
            keys = load_keys(keys_row, start, count, True, MERGE_CHUNK)
            physical = load_chunk(entries_row, start, count, MERGE_CHUNK)
            chosen, slot, above_before, ties_before = choose(
                keys, start + index < count, threshold, ties, exact, above_before, ties_before
            )
            tl.store(out_ptr + row * stride_out_b + slot, physical, mask=chosen)


def radix_launches(logits, seq_lens, block_table, out, workspace, *, tile, slices, overlap):
    """(kernel, grid, arguments, warps) of each launch, for launching and for compilation alike."""
    batch, k = out.shape
    shared = dict(
        seq_lens_ptr=seq_lens, out_ptr=out, best_keys_ptr=workspace[0], best_entries_ptr=workspace[1],
        k=k, slices=slices, capacity=min(logits.shape[1], block_table.shape[1] * PAGE_ENTRIES),
        stride_lens=seq_lens.stride(0), stride_out_b=out.stride(0),
        CHUNK=tile.chunk, HELD=tile.held, OVERLAP=overlap,
    )  # fmt: skip
    first = dict(
        scores_ptr=logits, block_table_ptr=block_table, batch=batch, stride_scores_b=logits.stride(0),
        stride_table_b=block_table.stride(0), stride_table_p=block_table.stride(1), PAGE=PAGE_ENTRIES, **shared,
    )  # fmt: skip
    launches = [(select_slices_kernel, (slices * batch,), first, tile.num_warps)]
    if slices > 1:
        second = dict(MERGE_CHUNK=tile.merge_chunk, MERGE_HELD=tile.merge_held, **shared)
        launches.append((select_candidates_kernel, (batch,), second, tile.merge_warps))
    return launches


def radix_topk(logits, seq_lens, block_table, out, workspace, *, tile, slices, overlap) -> torch.Tensor:
    """Launch the selection; arguments as `indexer_topk` after its checks.

    Args:
        out: int32 [B, k]; each row's indices in ascending order of entry position, then -1.
        workspace: int32 [2, B, slices, k], may hold anything.
        tile: `plan.TopkTile`; `slices` from `plan.topk_slices`.
        overlap: start while the predecessor ends (programmatic dependent launch, sm_90 and later).
    """
    options = {"launch_pdl": True} if overlap else {}
    for kernel, grid, arguments, warps in radix_launches(
        logits, seq_lens, block_table, out, workspace, tile=tile, slices=slices, overlap=overlap
    ):
        kernel[grid](**arguments, num_warps=warps, **options)
    return out
