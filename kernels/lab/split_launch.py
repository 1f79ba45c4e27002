"""What launching a split-K kernel of the laboratory takes besides the kernel: results, scratch, the shipped combine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.sparse_mla import launch
from kernels.sparse_mla.combine import combine_kernel
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.plan import workspace_bytes
from kernels.sparse_mla.validate import Inputs


@dataclass(frozen=True)
class SplitLaunch:
    """The tensors of one launch with `num_splits` partial outputs a row, in bfloat16."""

    inputs: Inputs
    num_splits: int
    out: torch.Tensor
    lse: torch.Tensor
    partial_out: torch.Tensor
    partial_lse: torch.Tensor
    overlap: bool

    @property
    def options(self) -> dict:
        """Triton's launch options: whether the kernel may start while its predecessor ends."""
        return {"launch_pdl": True} if self.overlap else {}

    def combine(self) -> None:
        """Launch the shipped combine kernel behind the split kernel."""
        batch, heads, _ = self.inputs.q.shape
        combine_kernel[(batch, heads)](
            **launch.combine_arguments(
                self.inputs,
                self.partial_out,
                self.partial_lse,
                self.out,
                self.lse,
                self.num_splits,
                self.overlap,
            ),
            num_warps=launch.COMBINE_WARPS,
            num_stages=1,
            **self.options,
        )


def prepare(inputs: Inputs, num_splits: int, workspace, out, lse) -> SplitLaunch:
    """Results and scratch that were not passed in are allocated; `workspace` is of `plan.workspace_bytes`."""
    batch, heads, _ = inputs.q.shape
    device, rows = inputs.q.device, batch * num_splits * heads
    if workspace is None:
        workspace = torch.empty(workspace_bytes(batch, heads, num_splits), dtype=torch.uint8, device=device)
    partial_out = workspace[: rows * HEAD_DIM * 2].view(torch.bfloat16)
    partial_lse = workspace[partial_out.nbytes : partial_out.nbytes + rows * 4].view(torch.float32)
    out = torch.empty_like(inputs.q) if out is None else out
    lse = torch.empty(batch, heads, dtype=torch.float32, device=device) if lse is None else lse
    return SplitLaunch(inputs, num_splits, out, lse, partial_out, partial_lse, launch.can_overlap(inputs.q))
