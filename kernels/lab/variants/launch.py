"""Launches a variant in the place of rung `split_k`: the same arguments, the same scratch, the same combine."""

from __future__ import annotations

from importlib import import_module

import torch

from kernels.lab.split_launch import prepare
from kernels.lab.variants._frame import variant_kernel
from kernels.lab.variants.plan import Variant, variant_of
from kernels.sparse_mla import launch
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.tiles import Tile
from kernels.sparse_mla.validate import Inputs, check_inputs


def _function(name: str):
    file, _, function = name.partition(".")
    return getattr(import_module(f"kernels.lab.variants.{file}"), function)


def arguments(
    variant: Variant, tile: Tile, inputs: Inputs, partial_out, partial_lse, num_splits: int, overlap: bool
) -> dict:
    """Every argument of `variant_kernel` for one variant."""
    given = launch.split_k_arguments(
        inputs, Plan("split_k", tile, num_splits), partial_out, partial_lse, overlap
    )
    option = variant.option
    given |= {
        "ATTEND": _function(f"{variant.module}.attend"),
        "OPTION": _function(option) if option and "." in option else option,
        "PARTS": variant.parts,
    }
    return {name: given[name] for name in variant_kernel.arg_names}


def decode(
    name: str,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None = None,
    *,
    softmax_scale: float = HEAD_DIM**-0.5,
    attn_sink: torch.Tensor | None = None,
    tile: Tile | None = None,
    num_splits: int = 1,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`sparse_mla_decode` of one cache by a variant; arguments, results and errors as there.

    Args:
        name: key of `plan.VARIANTS`.
        tile: the variant's own when None.
        num_splits: programs that share a row's candidates.
        workspace: uint8 scratch of `plan.workspace_bytes(batch, heads, num_splits)` bytes.

    Raises:
        ValueError: no such variant, or a page stride or cache that does not start at an even address.
    """
    variant = variant_of(name)
    tile = tile or variant.tile
    inputs = check_inputs(
        q, kv_cache, indices, topk_length, softmax_scale, attn_sink, None, None, None
    )  # fmt: skip
    if inputs.main.cache.data_ptr() % 2 or inputs.main.page_stride % 2:
        raise ValueError("kv_cache: got an odd address or page stride, accepted are multiples of 2")
    split = prepare(inputs, num_splits, workspace, out, lse)
    batch, heads, _ = inputs.q.shape
    variant_kernel[(batch, -(-heads // tile.block_h), num_splits * variant.parts)](
        **arguments(variant, tile, inputs, split.partial_out, split.partial_lse, num_splits, split.overlap),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **split.options,
    )
    split.combine()
    return split.out, split.lse
