"""The specialisation that a launch would compile, for any plan, without a device, as `kernels.lab.compile` asks."""

import torch

from kernels.sparse_mla import launch
from kernels.sparse_mla.combine import combine_kernel
from kernels.sparse_mla.layout import ENTRY_BYTES, padded_page_stride
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.split_k import split_k_kernel
from kernels.sparse_mla.tiles import Tile
from kernels.sparse_mla.validate import Candidates, Inputs
from kernels.spec import KernelSpec, specialise


def candidates(batch: int, topk: int, page_size: int, has_length: bool) -> Candidates:
    """A cache of two pages with indices and lengths, without memory: what a launch needs to know of them."""
    stride = padded_page_stride(page_size)
    cache = torch.empty_strided((2, page_size, 1, ENTRY_BYTES), (stride, ENTRY_BYTES, ENTRY_BYTES, 1),
                                dtype=torch.uint8, device="meta")  # fmt: skip
    indices = torch.empty(batch, topk, dtype=torch.int32, device="meta")
    return Candidates(
        cache, indices, torch.empty(batch, dtype=torch.int32, device="meta") if has_length else None
    )


def signature(
    impl: str,
    tile: Tile,
    *,
    heads: int = 64,
    topk: int = 512,
    page_size: int = 64,
    has_length: bool = False,
    extra_topk: int = 0,
    extra_page_size: int = 64,
    has_sink: bool = True,
    num_splits: int = 8,
    scratch_dtype: torch.dtype = torch.bfloat16,
    overlap: bool = True,
) -> KernelSpec:
    """The `KernelSpec` of a rung ("serial", "simt", "mma", "split_k", "staged", or "combine") with a tile.

    Raises:
        ValueError: an unknown rung.
    """
    batch = 2
    q = torch.empty(batch, heads, 512, dtype=torch.bfloat16, device="meta")
    extra = candidates(batch, extra_topk, extra_page_size, has_length) if extra_topk else None
    sink = torch.empty(heads, dtype=torch.float32, device="meta") if has_sink else None
    inputs = Inputs(q, candidates(batch, topk, page_size, has_length), extra, sink, 512**-0.5)
    out, lse = torch.empty_like(q), torch.empty(batch, heads, dtype=torch.float32, device="meta")
    partial_out = torch.empty(batch * num_splits * heads * 512, dtype=scratch_dtype, device="meta")
    partial_lse = torch.empty(batch * num_splits * heads, dtype=torch.float32, device="meta")
    if impl == "combine":
        arguments = launch.combine_arguments(inputs, partial_out, partial_lse, out, lse, num_splits, overlap)
        return specialise("combine", combine_kernel, arguments, num_warps=launch.COMBINE_WARPS, num_stages=1)
    plan = Plan(impl, tile, num_splits)
    if impl == "split_k":
        kernel, arguments = (
            split_k_kernel,
            launch.split_k_arguments(inputs, plan, partial_out, partial_lse, overlap),
        )
    elif impl == "staged":
        kernel = launch.staged_kernel_of(tile)
        arguments = launch.staged_arguments(inputs, plan, out, lse, partial_out, partial_lse, overlap)
    elif impl in ("serial", "simt", "mma"):
        kernel, arguments = launch.attention_arguments(inputs, plan, out, lse)
    else:
        raise ValueError(
            f"impl: got {impl!r}, accepted are 'serial', 'simt', 'mma', 'split_k', 'staged' and 'combine'"
        )
    return specialise(impl, kernel, arguments, num_warps=tile.launched_warps, num_stages=tile.num_stages)
