"""Rung 1, as the campaign met it: gather the whole block table, one bf16 GEMM, PyTorch glue. O(max_context).

In a captured decode step `max_seq_len` is the configured context, not the live one: every step gathers,
converts and multiplies all of it, in each of the 21 ratio-4 layers, and writes a `[B, S, 64]` score tensor
that the next operations read again. Chapter 6 measures it.
"""

import torch

from .layout import PAGE_ENTRIES, live_lengths, pages_for, planes


def gather_and_score(q, index_cache, weights, lengths, block_table, width, compute_dtype) -> torch.Tensor:
    """Score the first `width` entries of every row, live or not -> float32 [B, <= width]; -inf if dead."""
    batch = q.shape[0]
    values, scales = planes(index_cache)
    pages = block_table[:, : pages_for(width)].to(torch.int64)
    width = min(width, pages.shape[1] * PAGE_ENTRIES)
    # Columns past a row's need hold anything, and -1 would wrap around: clamp before the gather, mask after.
    present = pages >= 0
    pages = pages.clamp(0, index_cache.shape[0] - 1)
    # [B, S, 128]
    keys = values[pages].view(torch.float8_e4m3fn).reshape(batch, -1, values.shape[2]).to(compute_dtype)
    # [B, S, 64], rounded to compute_dtype before the ReLU and the head sum
    per_head = torch.relu(torch.bmm(keys, q.to(compute_dtype).transpose(1, 2)))
    # [B, S]
    scores = (per_head * weights[:, None, :]).sum(dim=2) * scales[pages].reshape(batch, -1)
    position = torch.arange(scores.shape[1], device=q.device)
    live = (position[None, :] < lengths[:, None]) & present.repeat_interleave(PAGE_ENTRIES, dim=1)
    return torch.where(live, scores, -torch.inf)[:, :width]


def uncapped_logits(
    q, index_cache, weights, seq_lens, block_table, out, *, compute_dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Write the logits of all `out.shape[1]` entries; arguments as `indexer_logits` after its checks.

    Args:
        out: float32 [B, max_seq_len].
        compute_dtype: the GEMM's type: bfloat16, or float32 for the forced-FP32 GEMM of the first profile.
    """
    max_seq_len = out.shape[1]
    lengths = live_lengths(seq_lens, max_seq_len, block_table)
    scores = gather_and_score(q, index_cache, weights, lengths, block_table, max_seq_len, compute_dtype)
    out[:, : scores.shape[1]] = scores
    out[:, scores.shape[1] :] = -torch.inf
    return out
