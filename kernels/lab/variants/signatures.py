"""The specialisation that a variant's launch would compile, without a device, as `kernels.lab.compile` asks."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.lab.variants.launch import arguments, variant_kernel
from kernels.lab.variants.plan import variant_of
from kernels.sparse_mla.layout import ENTRY_BYTES, padded_page_stride
from kernels.sparse_mla.signatures import signature as rung_signature
from kernels.sparse_mla.tiles import Tile
from kernels.sparse_mla.validate import Candidates, Inputs
from kernels.spec import KernelSpec, specialise

HELD_QUERIES = "query_registers"


def signature(
    impl: str, tile: Tile, *, heads: int = 64, topk: int = 512, page_size: int = 64, num_splits: int = 8
) -> KernelSpec:
    """The `KernelSpec` of a variant with a tile; `query_registers` is the edited staged rung.

    Raises:
        ValueError: no such variant.
    """
    if impl == HELD_QUERIES:
        from kernels.lab.variants.query_registers import edited_kernel

        return replace(rung_signature("staged", tile), name=impl, fn=edited_kernel())
    variant = variant_of(impl)
    batch = 2
    stride = padded_page_stride(page_size)
    cache = torch.empty_strided((2, page_size, 1, ENTRY_BYTES), (stride, ENTRY_BYTES, ENTRY_BYTES, 1),
                                dtype=torch.uint8, device="meta")  # fmt: skip
    q = torch.empty(batch, heads, 512, dtype=torch.bfloat16, device="meta")
    indices = torch.empty(batch, topk, dtype=torch.int32, device="meta")
    inputs = Inputs(q, Candidates(cache, indices, None), None, None, 512**-0.5)
    rows = batch * num_splits * heads
    partial_out = torch.empty(rows * 512, dtype=torch.bfloat16, device="meta")
    partial_lse = torch.empty(rows, dtype=torch.float32, device="meta")
    given = arguments(variant, tile, inputs, partial_out, partial_lse, num_splits, True)
    return specialise(impl, variant_kernel, given, num_warps=tile.num_warps, num_stages=tile.num_stages)
