"""The indexer's two operators: check, choose a rung, launch. An explicit `impl` never falls back."""

from functools import lru_cache

import torch

from kernels import triton_mode

from . import capped, paged, plan, topk, uncapped, validate
from .layout import PAGE_ENTRIES

LOGITS_IMPLS = ("uncapped", "capped", "paged")
TOPK_IMPLS = ("torch", "radix")
INTERPRETED = triton_mode.interpreted()


@lru_cache
def _device_facts(device: torch.device) -> tuple[str, int, bool]:
    """Device class, number of SMs (the interpreter counts as a few), whether launches can overlap (sm_90 and
    later).
    """
    if INTERPRETED or device.type != "cuda":
        return plan.device_class(None), plan.INTERPRETER_SM_COUNT, False
    properties = torch.cuda.get_device_properties(device)
    name = plan.device_class((properties.major, properties.minor))
    return name, properties.multi_processor_count, properties.major >= 9


def _require_runnable(impl: str, device: torch.device) -> None:
    if device.type != "cuda" and not INTERPRETED:
        accepted = "a CUDA device, or TRITON_INTERPRET=1 before the import"
        validate.reject("impl", f"{impl!r} with tensors on {device}", accepted)


def indexer_logits(
    q,
    index_cache,
    weights,
    seq_lens,
    block_table,
    *,
    impl: str = "auto",
    max_seq_len: int | None = None,
    out=None,
    fill_tail: bool = True,
    cap: int | None = None,
    compute_dtype: torch.dtype = torch.bfloat16,
    tile: plan.LogitsTile | None = None,
    check_indices: bool = False,
):
    """Score every live entry: `scale[t] * sum_h relu(q[b, h] . k[t]) * w[b, h]`.

    Args:
        q: [B, 64, 128] or [B, 1, 64, 128], e4m3 or bfloat16, rows of 128 contiguous.
        index_cache: uint8 [pages, 64, 1, 132], planar pages (see `layout`), any page stride and offset.
        weights: float32 [B, 64], signed; the query's scale and the softmax scale are folded in.
        seq_lens: int32 [B] or [B, 1], in entries. Negative counts as 0; a length past the width or past
            64 * W counts as that.
        block_table: int32 [B, W], page of each 64 entries. Past a row's need it is not read. Entries of a
            negative page score -inf; a page past the cache is undefined without `check_indices`.
        impl: "uncapped", "capped", "paged", or "auto" = "paged".
        max_seq_len: columns of the result; the width of `out`, or 64 * W, if None.
        out: float32 [B, max_seq_len], contiguous rows at any row stride; allocated if None.
        fill_tail: write -inf from each length on, at a cost of O(max_seq_len). False leaves those elements as
            they were: for a consumer that follows the lengths, as `indexer_topk(impl="radix")` does.
            ("uncapped" always fills, "capped" always fills up to its cap.)
        cap: "capped" only: columns to compute; None reads the longest length on the host.
        compute_dtype: "uncapped" and "capped" only: the GEMM's type.
        tile: "paged" only: overrides the device's table.
        check_indices: refuse a live page outside the cache, naming row and position; synchronises.

    Returns:
        float32 [B, max_seq_len].

    Raises:
        validate.ArgumentError: names the argument, what came and what is accepted; nothing was written.
    """
    validate.check_impl(impl, ("auto", *LOGITS_IMPLS))
    q = validate.check_query(q)
    batch, device = q.shape[0], q.device
    validate.check_cache(index_cache, device)
    validate.check_tensor("weights", weights, device, torch.float32, (batch, q.shape[1]))
    if weights.stride(1) != 1:
        validate.reject("weights", f"stride {weights.stride(1)} in the last dimension", "1")
    seq_lens = validate.check_lengths(seq_lens, device, batch)
    validate.check_block_table(block_table, device, batch)
    if max_seq_len is None:
        given = isinstance(out, torch.Tensor) and out.dim() == 2
        max_seq_len = out.shape[1] if given else block_table.shape[1] * PAGE_ENTRIES
    validate.check_width("max_seq_len", max_seq_len)
    if out is not None:
        validate.check_out(out, device, torch.float32, (batch, max_seq_len))
    impl = "paged" if impl == "auto" else impl
    if cap is not None:
        if impl != "capped":
            validate.reject("cap", f"{cap!r} with impl={impl!r}", "None, or an integer with impl='capped'")
        validate.check_width("cap", cap)
    if compute_dtype not in (torch.bfloat16, torch.float32):
        validate.reject("compute_dtype", compute_dtype, "torch.bfloat16 or torch.float32")
    if impl == "paged":
        _require_runnable(impl, device)
    if check_indices:
        validate.check_pages(index_cache, seq_lens, block_table, max_seq_len)

    if impl == "capped" and cap is None:
        cap = capped.live_cap(seq_lens, max_seq_len)
    if out is None:
        out = torch.empty((batch, max_seq_len), dtype=torch.float32, device=device)
    if batch == 0:
        return out
    inputs = (q, index_cache, weights, seq_lens, block_table, out)
    if impl == "uncapped":
        return uncapped.uncapped_logits(*inputs, compute_dtype=compute_dtype)
    if impl == "capped":
        return capped.capped_logits(*inputs, cap=cap, fill_tail=fill_tail, compute_dtype=compute_dtype)
    name, sm_count, overlap = _device_facts(device)
    tile = tile or plan.LOGITS_TILES[name]
    programs = plan.logits_programs(tile, batch, sm_count)
    return paged.paged_logits(
        *inputs, tile=tile, programs=programs, fill_tail=fill_tail, upcast=INTERPRETED, overlap=overlap
    )


def topk_workspace(batch: int, k: int, device, tile: plan.TopkTile | None = None) -> torch.Tensor:
    """Scratch for `indexer_topk(impl="radix")`, sized by batch, k and device alone; it may hold anything.

    Returns:
        int32 [2, batch, slices, k], or [2, 1, 1, 1] where one program takes a whole row.
    """
    device = torch.device(device)
    device = torch.empty(0, device=device).device
    name, sm_count, _ = _device_facts(device)
    slices = plan.topk_slices(tile or plan.TOPK_TILES[name], batch, sm_count)
    shape = (2, batch, slices, k) if slices > 1 else (2, 1, 1, 1)
    return torch.empty(shape, dtype=torch.int32, device=device)


def indexer_topk(
    logits,
    seq_lens,
    block_table,
    k: int = 512,
    *,
    impl: str = "auto",
    out=None,
    workspace=None,
    tile: plan.TopkTile | None = None,
):
    """Physical indices of each row's `k` best live entries, as page * 64 + entry.

    Equal scores: the smaller entry position wins; -0.0 equals 0.0; NaN ranks as -inf. (With "torch" PyTorch
    decides among equals, and NaN ranks highest.) The result is a set. "radix" lists it by ascending entry
    position, "torch" in no order. A row with fewer than `k` live entries has them all, then -1.

    Args:
        logits: float32 [B, S], contiguous rows at any row stride; "radix" never reads past a length.
        seq_lens: int32 [B] or [B, 1]; below 0 counts as 0, past S or 64 * W counts as that.
        block_table: int32 [B, W]; an entry of a negative page gives -1 in its place.
        k: 1 to 2,048.
        impl: "torch", "radix", or "auto" = "radix".
        out: int32 [B, k]; allocated if None.
        workspace: "radix" only: from `topk_workspace`; allocated if None.
        tile: "radix" only: overrides the device's table.

    Returns:
        int32 [B, k].

    Raises:
        validate.ArgumentError: names the argument, what came and what is accepted; nothing was written.
    """
    validate.check_impl(impl, ("auto", *TOPK_IMPLS))
    impl = "radix" if impl == "auto" else impl
    if not isinstance(logits, torch.Tensor):
        validate.reject("logits", type(logits).__name__, "a torch.Tensor")
    device = logits.device
    validate.check_tensor("logits", logits, device, torch.float32, ("B", "S"))
    validate.check_current("logits", logits)
    batch, width = logits.shape
    validate.check_width("logits", width)
    if logits.stride(1) != 1 and width > 1:
        validate.reject("logits", f"stride {logits.stride(1)} in the last dimension", "1")
    seq_lens = validate.check_lengths(seq_lens, device, batch)
    validate.check_block_table(block_table, device, batch)
    name, sm_count, overlap = _device_facts(device)
    tile = tile or plan.TOPK_TILES[name]
    largest = min(tile.chunk, plan.MAX_TOPK)
    if type(k) is not int or not 1 <= k <= largest:
        validate.reject("k", repr(k), f"an integer from 1 to {largest}")
    if out is not None:
        validate.check_out(out, device, torch.int32, (batch, k))
    slices = plan.topk_slices(tile, batch, sm_count)
    if impl == "radix":
        _require_runnable(impl, device)
        if workspace is not None:
            shape = (2, batch, slices, k) if slices > 1 else (2, 1, 1, 1)
            validate.check_tensor("workspace", workspace, device, torch.int32, shape)
            if not workspace.is_contiguous():
                validate.reject("workspace", f"strides {workspace.stride()}", "a contiguous tensor")

    if out is None:
        out = torch.empty((batch, k), dtype=torch.int32, device=device)
    if batch == 0:
        return out
    if impl == "torch":
        return topk.torch_topk(logits, seq_lens, block_table, out)
    if workspace is None:
        workspace = topk_workspace(batch, k, device, tile)
    return topk.radix_topk(
        logits, seq_lens, block_table, out, workspace, tile=tile, slices=slices, overlap=overlap
    )
