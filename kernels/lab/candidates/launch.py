"""Launches the candidate: the operator's arguments and scratch, the shipped combine behind it."""

from __future__ import annotations

import torch
import triton

from kernels.lab.candidates.plan import CHUNK_T, MOST_CHUNKS, PER_PASS, WARPS, chunks_of
from kernels.sparse_mla import launch
from kernels.sparse_mla.combine import combine_kernel
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.plan import Plan, workspace_bytes
from kernels.sparse_mla.tiles import Tile
from kernels.sparse_mla.validate import Inputs, check_inputs


def arguments(
    inputs: Inputs, num_splits: int, out, lse, partial_out, partial_lse, release: str, overlap: bool
):
    """Every argument of the kernel.

    Raises:
        ValueError: a share of more than `MOST_CHUNKS` chunks.
    """
    chunks = chunks_of(inputs.main.topk, inputs.extra_topk, num_splits)
    if chunks > MOST_CHUNKS:
        raise ValueError(
            f"num_splits: got {num_splits}, so {chunks} chunks a share; accepted are {MOST_CHUNKS}"
        )
    plan = Plan("staged", Tile(64, CHUNK_T, WARPS, 1, True), num_splits, release)
    given = launch.staged_arguments(inputs, plan, out, lse, partial_out, partial_lse, overlap)
    for name in ("BLOCK_T", "BUFFERS", "WGMMA"):
        del given[name]
    return given | {
        "CHUNK_T": CHUNK_T,
        "CHUNKS": chunks,
        "PER_PASS": min(chunks, PER_PASS),
        "SEGMENT": triton.next_power_of_2(chunks * CHUNK_T),
    }


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
        ValueError: a share that does not fit, or memory that rung `staged` cannot read.
    """
    from kernels.lab.candidates.one_pass import one_pass_kernel

    inputs = check_inputs(
        q, kv_cache, indices, topk_length, softmax_scale, attn_sink,
        extra_kv_cache, extra_indices, extra_topk_length,
    )  # fmt: skip
    if reason := launch.misaligned(inputs):
        raise ValueError(reason)
    batch, heads, _ = inputs.q.shape
    rows = batch * num_splits * heads
    if workspace is None:
        workspace = torch.empty(workspace_bytes(batch, heads, num_splits), dtype=torch.uint8, device=q.device)
    partial_out = workspace[: rows * HEAD_DIM * 2].view(torch.bfloat16)
    partial_lse = workspace[partial_out.nbytes : partial_out.nbytes + rows * 4].view(torch.float32)
    out = torch.empty_like(inputs.q) if out is None else out
    lse = torch.empty(batch, heads, dtype=torch.float32, device=q.device) if lse is None else lse
    overlap = launch.can_overlap(inputs.q)
    options = {"launch_pdl": True} if overlap else {}
    one_pass_kernel[(batch, -(-heads // 64), num_splits)](
        **arguments(inputs, num_splits, out, lse, partial_out, partial_lse, release, overlap),
        num_warps=WARPS,
        num_stages=1,
        **options,
    )
    if num_splits > 1:
        combine_kernel[(batch, heads)](
            **launch.combine_arguments(inputs, partial_out, partial_lse, out, lse, num_splits, overlap),
            num_warps=launch.COMBINE_WARPS,
            num_stages=1,
            **options,
        )
    return out, lse
