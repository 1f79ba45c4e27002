"""The indexer's kernels as a compiler sees them: the specialisation that a launch would get."""

import torch

from kernels.spec import KernelSpec, specialise

from . import paged, plan, topk
from .layout import ENTRY_BYTES, INDEX_DIM, INDEX_HEADS, PAGE_BYTES, PAGE_ENTRIES

KERNELS = ("paged", "fill_tail", "radix_slices", "radix_candidates")


def _meta(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def signature(
    kernel: str,
    tile: plan.LogitsTile | plan.TopkTile,
    *,
    batch: int = 8,
    max_seq_len: int = 262144,
    num_pages: int = 4096,
    page_stride: int = PAGE_BYTES,
    k: int = 512,
    sm_count: int = 188,
    query_dtype: torch.dtype = torch.float8_e4m3fn,
    overlap: bool = True,
) -> KernelSpec:
    """The specialisation of one kernel of the ladder.

    Args:
        kernel: "paged" or "fill_tail" with a `LogitsTile`, the radix kernels with a `TopkTile`.
        overlap: as on sm_90 and later, where launches overlap.

    Raises:
        ValueError: another name, or a shape for which the kernel is not launched.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel: got {kernel!r}, accepted is one of {', '.join(KERNELS)}")
    table = _meta(batch, max_seq_len // PAGE_ENTRIES, dtype=torch.int32)
    seq_lens = _meta(batch, dtype=torch.int32)
    logits = _meta(batch, max_seq_len)
    if kernel in ("paged", "fill_tail"):
        cache = _meta(num_pages * page_stride, dtype=torch.uint8).as_strided(
            (num_pages, PAGE_ENTRIES, 1, ENTRY_BYTES), (page_stride, ENTRY_BYTES, ENTRY_BYTES, 1)
        )
        if kernel == "fill_tail":
            _, arguments = paged.fill_tail_launch(seq_lens, logits, max_seq_len)
            return specialise(kernel, paged.fill_tail_kernel, arguments, num_warps=4, num_stages=3)
        query = _meta(batch, INDEX_HEADS, INDEX_DIM, dtype=query_dtype)
        programs = plan.logits_programs(tile, batch, sm_count)
        _, arguments = paged.paged_launch(
            query, cache, _meta(batch, INDEX_HEADS), seq_lens, table, logits,
            tile=tile, programs=programs, upcast=False, overlap=overlap,
        )  # fmt: skip
        return specialise(
            kernel, paged.paged_logits_kernel, arguments, num_warps=tile.num_warps, num_stages=tile.num_stages
        )
    slices = plan.topk_slices(tile, batch, sm_count)
    workspace = _meta(2, batch, slices, k, dtype=torch.int32)
    out = _meta(batch, k, dtype=torch.int32)
    launches = topk.radix_launches(
        logits, seq_lens, table, out, workspace, tile=tile, slices=slices, overlap=overlap
    )
    index = KERNELS.index(kernel) - KERNELS.index("radix_slices")
    if index >= len(launches):
        raise ValueError(f"batch: got {batch}, accepted is a batch whose rows are shared by several programs")
    function, _, arguments, warps = launches[index]
    return specialise(kernel, function, arguments, num_warps=warps, num_stages=3)
