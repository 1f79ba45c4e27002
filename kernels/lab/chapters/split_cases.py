"""Small poisoned inputs for sparse MLA, and whether split-K gives the reference's result on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from kernels.sparse_mla import layout, sparse_mla_decode, sparse_mla_decode_reference
from kernels.sparse_mla import plan as planning

PAGE = 64
POISON = 0xFF  # NaN in e4m3, in bfloat16 and as a scale


@dataclass
class Case:
    """Arguments of one call: q, kv_cache, indices, topk_length; every byte that must not count is NaN."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    indices: torch.Tensor
    topk_length: torch.Tensor

    def arguments(self) -> dict[str, torch.Tensor]:
        """As keyword arguments of `sparse_mla_decode`."""
        return vars(self).copy()

    def rows(self, rows) -> Case:
        """The same case with some of its rows; the cache is shared."""
        return replace(self, q=self.q[rows], indices=self.indices[rows], topk_length=self.topk_length[rows])


def case(
    device: str, batch: int, heads: int, topk: int, lengths: Iterable[int] | None = None, seed: int = 4
) -> Case:
    """Random rows over distinct tokens; positions past a row's length name a poisoned slot.

    lengths: live candidates of each row; all of them when None.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = batch * topk
    pages = -(-tokens // PAGE) + 1
    cache = layout.allocate_cache(pages, PAGE, device=device, fill=POISON)
    kv = (torch.randn(tokens, layout.HEAD_DIM, generator=generator) * 0.5).to(torch.bfloat16)
    layout.store_kv(cache, torch.arange(tokens, device=device), kv.to(device))
    order = torch.randperm(tokens, generator=generator).to(torch.int32).reshape(batch, topk)
    q = torch.randn(batch, heads, layout.HEAD_DIM, generator=generator).to(torch.bfloat16)
    made = Case(
        q.to(device), cache, order.to(device), torch.full((batch,), topk, dtype=torch.int32, device=device)
    )
    if lengths is not None:
        set_lengths(made, lengths)
    return made


def set_lengths(case: Case, lengths: Iterable[int]) -> None:
    """Change the lengths in place, as an engine does between two replays of a graph."""
    case.topk_length.copy_(torch.tensor(list(lengths), dtype=torch.int32))


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 result."""
    return sparse_mla_decode_reference(**case.arguments())


def errors(out, lse, want_out, want_lse) -> tuple[float, float]:
    """(relative RMS error of the output, largest error of a finite LSE; infinite where one LSE should be)."""
    off = (out.double() - want_out).pow(2).mean().sqrt() / want_out.pow(2).mean().sqrt().clamp_min(1e-30)
    finite = torch.isfinite(want_lse)
    if not torch.equal(torch.isfinite(lse), finite):
        return float(off), float("inf")
    return float(off), float((lse.double() - want_lse)[finite].abs().max()) if finite.any() else 0.0


@np.errstate(divide="ignore", invalid="ignore")  # the interpreter takes log2(0) of an empty split
def correctness(device: str, splits: Iterable[int] = (1, 3, 7)) -> pd.DataFrame:
    """Columns splits, rows, lengths, output_error, lse_error: split-K against the reference, NaN all
    around.
    """
    batch, heads, topk = (16, 64, 512) if device == "cuda" else (4, 8, 80)
    lengths = [(0, 1, topk // 2 + 1, topk)[row % 4] for row in range(batch)]
    made = case(device, batch, heads, topk, lengths)
    want = reference(made)
    found = []
    for count in splits:
        out, lse = sparse_mla_decode(
            **made.arguments(), impl="split_k", num_splits=count, workspace=poisoned_workspace(made, count)
        )
        off, off_lse = errors(out, lse, *want)
        found.append({"splits": count, "rows": batch, "lengths": ", ".join(map(str, lengths[:4])),
                      "output_error": off, "lse_error": off_lse})  # fmt: skip
    return pd.DataFrame(found)


def poisoned_workspace(case: Case, num_splits: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Scratch full of NaN, so that a partial result that nobody wrote would show."""
    batch, heads, _ = case.q.shape
    size = planning.workspace_bytes(batch, heads, num_splits, dtype)
    return torch.full((size,), POISON, dtype=torch.uint8, device=case.q.device)
