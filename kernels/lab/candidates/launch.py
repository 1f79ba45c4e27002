"""Launches the candidate: the operator's arguments and scratch, the shipped combine behind it."""

from __future__ import annotations

import torch
import triton

from kernels.lab.candidates.plan import PER_PASS, TILE, chunks_of
from kernels.lab.split_launch import prepare
from kernels.sparse_mla import launch
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.validate import Inputs, check_inputs


def why_not(device: torch.device) -> str | None:
    """Why the candidate cannot run on a device, or None where it can."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9:
        return None
    return f"the candidate multiplies by wgmma, which sm_90 has; this is {device}"


def arguments(
    inputs: Inputs, num_splits: int, out, lse, partial_out, partial_lse, release: str, overlap: bool
):
    """Every argument of the kernel, from the staged rung's.

    Raises:
        ValueError: a share of too many chunks.
    """
    from kernels.lab.candidates.one_pass import one_pass_kernel

    chunks = chunks_of(inputs.main.topk, inputs.extra_topk, num_splits)
    plan = Plan("staged", TILE, num_splits, release)
    given = launch.staged_arguments(inputs, plan, out, lse, partial_out, partial_lse, overlap) | {
        "CHUNKS": chunks,
        "PER_PASS": min(chunks, PER_PASS),
        "SEGMENT": triton.next_power_of_2(chunks * TILE.block_t),
    }
    return {name: given[name] for name in one_pass_kernel.arg_names}


def decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    topk_length: torch.Tensor | None = None,
    *,
    softmax_scale: float = HEAD_DIM**-0.5,
    attn_sink: torch.Tensor | None = None,
    extra_kv_cache: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    num_splits: int,
    release: str = "start",
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`sparse_mla_decode` on sm_90; arguments, results and errors as there.

    Args:
        num_splits: programs that share a row; each share has to fit into `MOST_CHUNKS` chunks of 32 candidates.
        release: when the combine kernel may start, a key of `kernels.sparse_mla.tiles.RELEASES`.
        workspace: uint8 scratch of `plan.workspace_bytes(batch, heads, num_splits)` bytes.

    Raises:
        ValueError: a share that does not fit, another device, or memory that rung `staged` cannot read.
    """
    from kernels.lab.candidates.one_pass import one_pass_kernel

    inputs = check_inputs(
        q, kv_cache, indices, topk_length, softmax_scale, attn_sink,
        extra_kv_cache, extra_indices, extra_topk_length,
    )  # fmt: skip
    chunks_of(inputs.main.topk, inputs.extra_topk, num_splits)
    if reason := why_not(q.device) or launch.misaligned(inputs):
        raise ValueError(reason)
    split = prepare(inputs, num_splits, workspace, out, lse)
    batch, heads, _ = inputs.q.shape
    scratch = (split.out, split.lse, split.partial_out, split.partial_lse)
    one_pass_kernel[(batch, -(-heads // TILE.block_h), num_splits)](
        **arguments(inputs, num_splits, *scratch, release, split.overlap),
        num_warps=TILE.num_warps,
        num_stages=TILE.num_stages,
        **split.options,
    )
    if num_splits > 1:
        split.combine()
    return split.out, split.lse
