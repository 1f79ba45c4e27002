"""FlashMLA's front door on this operator: an engine swaps `from flash_mla import ...` for this module.

Served is sparse decode over the V4 cache (`is_fp8_kvcache=True`, `indices` given, head dimension 512). What
else FlashMLA can do is refused by name. Names, order and defaults of the arguments are those of
deepseek-ai/FlashMLA, flash_mla/flash_mla_interface.py.
"""

from dataclasses import dataclass

import torch

from kernels.sparse_mla.api import sparse_mla_decode
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.validate import ArgumentError, check_output, reject

_NAMES = {
    "kv_cache": "k_cache",
    "extra_kv_cache": "extra_k_cache",
    "extra_indices": "extra_indices_in_kvcache",
}


@dataclass
class FlashMLASchedMeta:
    """Stands where FlashMLA keeps its schedule, and stays empty: here the plan follows from a call's shapes.

    One object serves every shape, and a captured graph needs no new one.
    """

    have_initialized: bool = False
    config: None = None
    tile_scheduler_metadata: None = None
    num_splits: None = None


def get_mla_metadata(*args, **kwargs) -> tuple[FlashMLASchedMeta, None]:
    """An object for `flash_mla_with_kvcache`, and None; arguments of older interfaces are not read."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta | None,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse decode under FlashMLA's signature.

    Args:
        q: bfloat16 `[B, S, H, 512]`; S queries of a request share its lengths, and nothing else.
        k_cache, extra_k_cache: uint8 `[pages, P, 1, 584]` (`layout`).
        block_table, cache_seqlens: not read, as in FlashMLA where `indices` are given: they are token slots.
        head_dim_v: 512.
        tile_scheduler_metadata: from `get_mla_metadata`, or None.
        num_splits: None; the plan decides.
        softmax_scale: 512**-0.5 when None.
        causal: False; is_fp8_kvcache: True.
        indices, extra_indices_in_kvcache: int32 `[B, S, K]`.
        attn_sink: float32 `[H]`.
        topk_length, extra_topk_length: int32 `[B]`.
        out: result to write into, bfloat16 `[B, S, H, 512]`.

    Returns:
        out bfloat16 `[B, S, H, 512]` and lse float32 `[B, H, S]`, natural logarithm, without the sink.

    Raises:
        ArgumentError: an argument that sparse decode does not take; nothing was launched or written.
    """
    if head_dim_v != HEAD_DIM:
        reject("head_dim_v", head_dim_v, str(HEAD_DIM))
    if tile_scheduler_metadata is not None and not isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        got = type(tile_scheduler_metadata).__name__
        reject("tile_scheduler_metadata", got, "the first result of get_mla_metadata, or None")
    if num_splits is not None:
        reject("num_splits", num_splits, "None: the plan decides")
    if causal:
        reject("causal", causal, "False: the indices say what a query sees")
    if not is_fp8_kvcache:
        reject("is_fp8_kvcache", is_fp8_kvcache, "True: the cache holds e4m3 and its scales")
    if indices is None:
        reject("indices", "None", "an int32 tensor: dense decode is not served")
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        got = f"shape {list(q.shape)}" if isinstance(q, torch.Tensor) else type(q).__name__
        reject("q", got, f"[batch, queries, heads, {HEAD_DIM}]")
    batch, queries, heads, width = q.shape
    indices = _rows_of("indices", indices, batch, queries)
    if extra_indices_in_kvcache is not None:
        extra_indices_in_kvcache = _rows_of(
            "extra_indices_in_kvcache", extra_indices_in_kvcache, batch, queries
        )
    topk_length = _repeat("topk_length", topk_length, batch, queries)
    extra_topk_length = _repeat("extra_topk_length", extra_topk_length, batch, queries)
    rows = None
    if out is not None:
        check_output("out", out, q.shape, torch.bfloat16, q.device)
        if queries > 1 and batch > 1 and out.stride(0) != queries * out.stride(1):
            reject("out", f"strides {out.stride()}", "requests one behind the other")
        rows = out[:, 0] if queries == 1 else out.flatten(0, 1)
    try:
        result, lse = sparse_mla_decode(
            q[:, 0] if queries == 1 else q.flatten(0, 1),
            k_cache,
            indices,
            topk_length,
            softmax_scale=HEAD_DIM**-0.5 if softmax_scale is None else softmax_scale,
            attn_sink=attn_sink,
            extra_kv_cache=extra_k_cache,
            extra_indices=extra_indices_in_kvcache,
            extra_topk_length=extra_topk_length,
            out=rows,
        )
    except ArgumentError as error:
        raise ArgumentError(_under_these_names(str(error))) from None
    if out is None:
        out = result.view(batch, queries, heads, width)
    return out, lse.view(batch, queries, heads).transpose(1, 2)


def _rows_of(name: str, indices, batch: int, queries: int):
    """`[B, S, K]` indices as one row a query."""
    if not isinstance(indices, torch.Tensor) or indices.dim() != 3 or indices.shape[:2] != (batch, queries):
        got = f"shape {list(indices.shape)}" if isinstance(indices, torch.Tensor) else type(indices).__name__
        reject(name, got, f"[{batch}, {queries}, topk]")
    return indices[:, 0] if queries == 1 else indices.flatten(0, 1)


def _repeat(name: str, length, batch: int, queries: int):
    """A request's length once for each of its queries."""
    if length is None or queries == 1:
        return length
    if not isinstance(length, torch.Tensor) or length.numel() != batch or length.dim() != 1:
        got = f"shape {list(length.shape)}" if isinstance(length, torch.Tensor) else type(length).__name__
        reject(name, got, f"[{batch}]")
    return length[:, None].expand(batch, queries).reshape(-1)


def _under_these_names(message: str) -> str:
    """An error of the operator, about the argument as FlashMLA calls it."""
    name, _, rest = message.partition(":")
    return f"{_NAMES.get(name, name)}:{rest}"
