"""The specialisation that the candidate's launch would compile, without a device, as `kernels.lab.compile` asks."""

from __future__ import annotations

import torch

from kernels.lab.candidates.launch import arguments
from kernels.lab.candidates.plan import TILE, Tile
from kernels.sparse_mla.layout import ENTRY_BYTES, padded_page_stride
from kernels.sparse_mla.validate import Candidates, Inputs
from kernels.spec import KernelSpec, specialise


def _candidates(batch: int, topk: int, page_size: int) -> Candidates:
    stride = padded_page_stride(page_size)
    cache = torch.empty_strided((2, page_size, 1, ENTRY_BYTES), (stride, ENTRY_BYTES, ENTRY_BYTES, 1),
                                dtype=torch.uint8, device="meta")  # fmt: skip
    return Candidates(cache, torch.empty(batch, topk, dtype=torch.int32, device="meta"), None)


def signature(
    impl: str, tile: Tile, *, heads: int = 64, topk: int = 512, extra_topk: int = 0, num_splits: int = 8
) -> KernelSpec:
    """The `KernelSpec` of "one_pass"; `tile` has to be `plan.TILE`.

    Raises:
        ValueError: another name or tile, or a share that does not fit.
    """
    from kernels.lab.candidates.one_pass import one_pass_kernel

    if impl != "one_pass" or tile != TILE:
        raise ValueError(f"impl: got {impl!r} with {tile}, accepted is 'one_pass' with {TILE}")
    batch = 2
    q = torch.empty(batch, heads, 512, dtype=torch.bfloat16, device="meta")
    extra = _candidates(batch, extra_topk, 64) if extra_topk else None
    sink = torch.empty(heads, dtype=torch.float32, device="meta")
    inputs = Inputs(q, _candidates(batch, topk, 64), extra, sink, 512**-0.5)
    rows = batch * num_splits * heads
    out, lse = torch.empty_like(q), torch.empty(batch, heads, dtype=torch.float32, device="meta")
    partial_out = torch.empty(rows * 512, dtype=torch.bfloat16, device="meta")
    partial_lse = torch.empty(rows, dtype=torch.float32, device="meta")
    given = arguments(inputs, num_splits, out, lse, partial_out, partial_lse, "start", True)
    return specialise(impl, one_pass_kernel, given, num_warps=tile.num_warps, num_stages=tile.num_stages)
