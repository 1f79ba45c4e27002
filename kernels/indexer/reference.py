"""What is correct: the indexer's scores and its top-k in float64, touching only the entries that are live.

`score[b, t] = scale[t] * sum_h relu(q[b, h] . k[t]) * w[b, h]` for `t < seq_lens[b]`, and -inf from there on.
The weights are signed, so a live score can be negative.
"""

import torch

from .layout import PAGE_ENTRIES, live_lengths, planes

_BLOCK_ENTRIES = 16384


def indexer_logits_reference(q, index_cache, weights, seq_lens, block_table, max_seq_len) -> torch.Tensor:
    """Score every live entry in float64.

    Args:
        q: [B, 64, 128], e4m3 or bfloat16.
        index_cache: uint8 [pages, 64, 1, 132].
        weights: float32 [B, 64].
        seq_lens: int32 [B] or [B, 1], in entries.
        block_table: int32 [B, W], pages; entries of a negative page score -inf and are not read.

    Returns:
        float64 [B, max_seq_len], -inf at and past each length.
    """
    values, scales = planes(index_cache)
    queries = q.to(torch.float32).to(torch.float64)
    signed = weights.to(torch.float64)
    out = torch.full((q.shape[0], max_seq_len), -torch.inf, dtype=torch.float64, device=q.device)
    for row, length in enumerate(live_lengths(seq_lens, max_seq_len, block_table).tolist()):
        for start in range(0, length, _BLOCK_ENTRIES):
            position = torch.arange(start, min(length, start + _BLOCK_ENTRIES), device=q.device)
            page = block_table[row, position // PAGE_ENTRIES].to(torch.int64)
            position, page = position[page >= 0], page[page >= 0]
            entry = position % PAGE_ENTRIES
            keys = values[page, entry].view(torch.float8_e4m3fn).to(torch.float32).to(torch.float64)
            per_head = torch.relu(keys @ queries[row].T)
            out[row, position] = (per_head @ signed[row]) * scales[page, entry].to(torch.float64)
    return out


def topk_reference(logits, seq_lens, block_table, k: int = 512) -> torch.Tensor:
    """Physical indices of each row's `k` best live entries.

    Equal scores: the smaller entry position wins; -0.0 equals 0.0 and NaN ranks as -inf. The result is a set;
    this function lists it by ascending entry position, then -1 where a row has fewer than `k` entries. An
    entry of a negative page is listed as -1 in its place.

    Args:
        logits: [B, S]; nothing at or past a length is read.
        seq_lens: int32 [B] or [B, 1].
        block_table: int32 [B, W].

    Returns:
        int32 [B, k] of page * 64 + entry.
    """
    out = torch.full((logits.shape[0], k), -1, dtype=torch.int32, device=logits.device)
    for row, length in enumerate(live_lengths(seq_lens, logits.shape[1], block_table).tolist()):
        score = logits[row, :length]
        score = torch.where(score.isnan(), -torch.inf, score)
        order = torch.sort(score, descending=True, stable=True).indices[:k]
        position = order.sort().values
        page = block_table[row, position // PAGE_ENTRIES]
        slot = page * PAGE_ENTRIES + (position % PAGE_ENTRIES).to(torch.int32)
        out[row, : len(position)] = torch.where(page >= 0, slot, -1)
    return out
