"""Sparse MLA decode in float64: the definition that every rung is held to. No kernel imports it."""

import torch

from kernels.sparse_mla.layout import HEAD_DIM, load_kv


def valid_slots(indices: torch.Tensor, length: int | None) -> torch.Tensor:
    """The non-negative entries of one row of `indices` `[K]` before position `length`."""
    head = indices if length is None else indices[: max(0, min(int(length), indices.numel()))]
    return head[head >= 0]


def sparse_mla_decode_reference(
    q,
    kv_cache,
    indices,
    topk_length=None,
    *,
    softmax_scale=HEAD_DIM**-0.5,
    attn_sink=None,
    extra_kv_cache=None,
    extra_indices=None,
    extra_topk_length=None,
):
    """Attention of each row of `q` over its own selected cache entries, one softmax over both caches.

    Only entries that count are read, so the rest of the cache may hold anything.

    Args:
        q: `[B, H, 512]`.
        kv_cache, extra_kv_cache: uint8 `[pages, P, 1, 584]` (`layout`).
        indices, extra_indices: int `[B, K]` token slots; negative means absent.
        topk_length, extra_topk_length: int `[B]` or `[B, 1]`; entries at or past it are absent.
        softmax_scale: factor on the scores.
        attn_sink: `[H]`, a logit that joins the denominator and no value.

    Returns:
        out float64 `[B, H, 512]` and lse float64 `[B, H]` (natural logarithm, without the sink). A row without
        entries gives 0 and +inf.
    """
    batch, heads, _ = q.shape
    out = torch.zeros(batch, heads, HEAD_DIM, dtype=torch.float64, device=q.device)
    lse = torch.full((batch, heads), float("inf"), dtype=torch.float64, device=q.device)
    sources = [(kv_cache, indices, topk_length)]
    if extra_kv_cache is not None:
        sources.append((extra_kv_cache, extra_indices, extra_topk_length))
    for b in range(batch):
        rows = []
        for cache, table, lengths in sources:
            length = None if lengths is None else int(lengths.reshape(-1)[b])
            rows.append(load_kv(cache, valid_slots(table[b].reshape(-1), length)))
        kv = torch.cat(rows)
        if kv.shape[0] == 0:
            continue
        scores = q[b].double() @ kv.T * softmax_scale
        lse[b] = torch.logsumexp(scores, -1)
        out[b] = torch.exp(scores - lse[b][:, None]) @ kv
        if attn_sink is not None:
            out[b] *= torch.sigmoid(lse[b] - attn_sink.double())[:, None]
    return out, lse
