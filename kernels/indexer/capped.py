"""Rung 2, the campaign's fix: do only a bucket's worth of columns, and leave the rows of `out` in place.

The work falls from O(max_context) to O(bucket). The bucket is chosen on the host, from the longest live row,
before a CUDA graph is chosen: one graph a bucket. What must not follow the bucket is the row stride: a
consumer that was captured with the wide stride would read row 0 correctly and every other row from the wrong
place. Chapter 6 shows both.
"""

import torch

from .layout import live_lengths
from .plan import context_cap
from .uncapped import gather_and_score


def capped_columns(out: torch.Tensor, cap: int) -> torch.Tensor:
    """The first `cap` columns of every row, at the row stride of `out`: a bound on the work."""
    return out[:, :cap]


def repacked_columns(out: torch.Tensor, cap: int) -> torch.Tensor:
    """The trap: a [B, cap] matrix at the start of the memory of `out`, whose row stride became `cap`.

    Writing here is right for a reader that is told the new stride, and wrong in every row but the first for a
    reader that was captured with the old one. Kept for the demonstration; no operator calls it.
    """
    return out.as_strided((out.shape[0], cap), (cap, 1))


def live_cap(seq_lens: torch.Tensor, max_seq_len: int) -> int:
    """The bucket for the longest live row. Reads `seq_lens` on the host, so it cannot run inside a capture.

    Raises:
        ValueError: called while a CUDA graph is being captured.
    """
    if seq_lens.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "cap: got None inside a CUDA graph capture, accepted is an integer chosen before the capture, "
            "such as plan.context_cap(longest_live_length, max_seq_len)"
        )
    longest = int(seq_lens.max()) if seq_lens.numel() else 0
    return context_cap(longest, max_seq_len)


def capped_logits(
    q,
    index_cache,
    weights,
    seq_lens,
    block_table,
    out,
    *,
    cap: int | None = None,
    fill_tail: bool = True,
    compute_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Write the logits of the first `cap` entries of every row; other arguments as checked.

    Args:
        out: float32 [B, max_seq_len], any row stride.
        cap: entries to compute in each row; rows longer than it lose their end. None: the live bucket.
        fill_tail: also write -inf from `cap` to `max_seq_len`, which costs O(max_seq_len) again.
    """
    max_seq_len = out.shape[1]
    cap = live_cap(seq_lens, max_seq_len) if cap is None else min(cap, max_seq_len)
    lengths = live_lengths(seq_lens, cap, block_table)
    scores = gather_and_score(q, index_cache, weights, lengths, block_table, cap, compute_dtype)
    columns = capped_columns(out, cap)
    columns[:, : scores.shape[1]] = scores
    columns[:, scores.shape[1] :] = -torch.inf
    if fill_tail:
        out[:, cap:] = -torch.inf
    return out
