"""What a captured graph may keep: one plan, many lengths."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from kernels.lab.chapters.split_cases import case, errors, poisoned_workspace, reference, set_lengths
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla import sparse_mla_decode


def lengths_over(topk: int, batch: int) -> dict[str, list[int]]:
    """Situations that an engine meets between two replays: name -> length of each row."""
    return {
        "all rows full": [topk] * batch,
        "all rows short": [max(topk // 8, 1)] * batch,
        "one row full, others empty": [topk] + [0] * (batch - 1),
        "every row another length": [topk * (row + 1) // batch for row in range(batch)],
        "full again": [topk] * batch,
    }


@np.errstate(divide="ignore", invalid="ignore")  # the interpreter takes log2(0) of an empty split
def replay_table(device: str) -> pd.DataFrame:
    """Run one plan over changing lengths; columns lengths, blocks, splits, output_error, lse_error,
    rows_wrong.

    On CUDA the call is captured once, at full length, and only replayed afterwards: pointers, grid and plan
    are frozen while the lengths change in place. On a CPU the same plan is run again.
    """
    batch, heads, topk = (16, 64, 512) if device == "cuda" else (3, 8, 96)
    made = case(device, batch, heads, topk)
    plan = planning.plan(
        batch, heads, topk, device=planning.device_of(made.q), impl="split_k", tile_class="sm120",
        num_splits=None if device == "cuda" else 3,
    )  # fmt: skip
    out = torch.empty_like(made.q)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=device)
    workspace = poisoned_workspace(made, plan.num_splits)

    def call():
        sparse_mla_decode(**made.arguments(), plan=plan, workspace=workspace, out=out, lse=lse)

    again = _captured(call) if device == "cuda" else call
    found = []
    for name, lengths in lengths_over(topk, batch).items():
        set_lengths(made, lengths)
        out.fill_(float("nan"))
        again()
        want_out, want_lse = reference(made)
        off, off_lse = errors(out, lse, want_out, want_lse)
        wrong = [row for row in range(batch) if not _row_right(out[row], want_out[row])]
        found.append({"lengths": name, "splits": plan.num_splits, "blocks": plan.blocks(batch, heads),
                      "output_error": off, "lse_error": off_lse, "rows_wrong": len(wrong)})  # fmt: skip
    return pd.DataFrame(found)


def _captured(call):
    from kernels.lab.timing import capture

    return capture([call]).replay


def _row_right(got: torch.Tensor, want: torch.Tensor) -> bool:
    scale = want.abs().max().clamp_min(1e-6)
    return bool(((got.double() - want).abs().max() / scale) < 2e-2)
