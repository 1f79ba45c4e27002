"""The losing attempt of chapter 4: split-K on the per-head kernel, without writing a new kernel.

A row's candidates cut into S parts are S rows of K / S candidates with the same query. So the per-head rung
can be run on the folded batch and its results merged by LSE. Times are of the attention kernel alone: what
it would lose before the merge is paid.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from kernels.lab import experiments, roofline
from kernels.lab.chapters.split_cases import Case, case, errors, reference
from kernels.lab.experiments import Point
from kernels.sparse_mla import sparse_mla_decode

EXPERIMENT = "per_head_split"


def fold(made: Case, num_splits: int) -> Case:
    """`[B]` rows of K candidates as `[B * num_splits]` rows of K / num_splits.

    Raises:
        ValueError: num_splits does not divide K.
    """
    batch, topk = made.indices.shape
    if topk % num_splits:
        raise ValueError(f"num_splits: got {num_splits}, accepted are divisors of topk={topk}")
    width = topk // num_splits
    first = torch.arange(num_splits, device=made.q.device) * width
    lengths = (made.topk_length[:, None] - first).clamp(0, width)
    return replace(
        made,
        q=made.q.repeat_interleave(num_splits, 0),
        indices=made.indices.reshape(batch * num_splits, width),
        topk_length=lengths.reshape(-1).to(torch.int32),
    )


def merge(out: torch.Tensor, lse: torch.Tensor, num_splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge folded results by their natural-log LSEs, +inf standing for an empty part, in float64."""
    out = out.double().reshape(-1, num_splits, *out.shape[1:])
    lse = lse.double().reshape(-1, num_splits, lse.shape[1])
    lse = torch.where(lse == torch.inf, -torch.inf, lse)
    whole = torch.logsumexp(lse, 1)
    weights = torch.exp(lse - torch.where(whole == -torch.inf, 0.0, whole)[:, None])
    merged = (weights[..., None] * out).sum(1)
    return merged, torch.where(whole == -torch.inf, torch.inf, whole)


@np.errstate(divide="ignore", invalid="ignore")  # the interpreter takes log2(0) of an empty part
def correctness(device: str, num_splits: int = 2) -> tuple[float, float]:
    """(output error, LSE error) of the folded per-head kernel against the reference."""
    batch, heads, topk = (4, 64, 512) if device == "cuda" else (2, 2, 32)
    made = case(device, batch, heads, topk, [topk, topk // 4] * (batch // 2))
    folded = fold(made, num_splits)
    out, lse = sparse_mla_decode(**folded.arguments(), impl="simt")
    return errors(*merge(out, lse, num_splits), *reference(made))


def counts(batches=(1, 4, 16, 64), splits: int = 8, heads: int = 64, topk: int = 512) -> pd.DataFrame:
    """Columns batch, blocks_whole, blocks_split, requested_mb, scratch_mb: what splitting a per-head grid
    changes.

    requested_mb: KV bytes that the grid asks for, which splitting does not change. scratch_mb: partials,
    both ways.
    """
    return pd.DataFrame(
        {
            "batch": batch,
            "blocks_whole": batch * heads,
            "blocks_split": batch * heads * splits,
            "requested_mb": roofline.requested_kv_bytes(batch, heads, topk) / 1e6,
            "scratch_mb": 2 * sum(roofline.scratch(batch, heads, splits).values()) / 1e6,
        }
        for batch in batches
    )


def points(profile: str) -> list[tuple[Point, int]]:
    """(folded point, splits); the point's batch and topk are the folded ones."""
    batches = {"quick": (1, 16), "full": (1, 4, 16, 64)}[profile]
    return [
        (Point("sparse_mla_decode", "simt", batch * s, topk=512 // s, tile_class="sm120"), s)
        for batch in batches
        for s in (1, 2, 4, 8)
    ]


def measure(profile: str) -> list[dict]:
    """Rows of the experiment: batch and topk are the row's own again, num_splits says how it was cut."""
    rows = []
    for point, splits in points(profile):
        for row in experiments.measure_points([point]):
            rows.append(
                {**row, "batch": row["batch"] // splits, "topk": row["topk"] * splits, "num_splits": splits}
            )
    return rows


def over_whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Time over the unsplit grid's at the same batch: rows are batches, columns numbers of splits; empty
    without data.
    """
    rows = rows[rows["status"] == "ok"] if len(rows) else rows
    if rows.empty:
        return pd.DataFrame()
    table = rows.pivot_table(index="batch", columns="num_splits", values="median_us")
    table.index, table.columns = table.index.astype(int), table.columns.astype(int)
    return table.div(table[1], axis=0) if 1 in table else pd.DataFrame()


experiments.register(EXPERIMENT, measure)
