"""Does a row's result depend on its neighbours in the batch, and what does it cost to forbid that?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from kernels.lab import experiments, roofline
from kernels.lab.chapters.split_cases import case
from kernels.lab.experiments import Point
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla import sparse_mla_decode

EXPERIMENT = "batch_invariance"
FIXED = "split_k_fixed"


@np.errstate(divide="ignore", invalid="ignore")
def bits(device: str) -> pd.DataFrame:
    """Columns mode, splits_alone, splits_together, differing: row 0 alone against row 0 in a batch.

    differing: output values of row 0 whose bits differ. On a CPU the split counts are those that the
    planner gives the full shape at batch 1 and 16, on a short row; on CUDA the full shape is run.
    """
    batch, heads, topk = (16, 64, 512) if device == "cuda" else (2, 16, 160)
    made = case(device, batch, heads, topk)
    alone = made.rows(slice(0, 1))
    target = planning.device_of(made.q)
    found = []
    for mode, choose in (("planned by shape", planned), ("batch-invariant", invariant)):
        pair = choose(1, device=target), choose(16, device=target)
        if device != "cuda":  # as many splits as the short row has tiles for
            pair = tuple(max(1, min(5, plan // 3)) for plan in pair)
        first, second = (
            sparse_mla_decode(**rows.arguments(), impl="split_k", num_splits=splits, tile_class="sm120")[0][0]
            for rows, splits in zip((alone, made), pair, strict=True)
        )
        differing = int((first.view(torch.int16) != second.view(torch.int16)).sum())
        found.append(
            {"mode": mode, "splits_alone": pair[0], "splits_together": pair[1], "differing": differing}
        )
    return pd.DataFrame(found)


def planned(batch: int, heads: int = 64, topk: int = 512, device=planning.RTX_PRO_6000) -> int:
    """Splits that the planner gives a batch within sm_120's tiles."""
    return planning.plan(batch, heads, topk, device=device, impl="split_k", tile_class="sm120").num_splits


def invariant(batch: int, heads: int = 64, topk: int = 512, device=planning.RTX_PRO_6000) -> int:
    """Splits of the batch-invariant mode: `batch` is not looked at."""
    return planning.batch_invariant_plan(
        heads, topk, device=device, impl="split_k", tile_class="sm120"
    ).num_splits


def price(batches: Iterable[int] = (1, 8, 16, 64, 128), device=planning.RTX_PRO_6000) -> pd.DataFrame:
    """Columns batch, planned_splits, fixed_splits, planned_blocks, fixed_blocks, planned_mb, fixed_mb
    (scratch, both ways).
    """
    rows = []
    for batch in batches:
        row = {"batch": batch}
        for name, splits in (
            ("planned", planned(batch, device=device)),
            ("fixed", invariant(batch, device=device)),
        ):
            plan = planning.plan(
                batch, 64, 512, device=device, impl="split_k", tile_class="sm120", num_splits=splits
            )
            scratch = 2 * sum(roofline.scratch(batch, 64, splits).values()) if splits > 1 else 0
            row |= {
                f"{name}_splits": splits,
                f"{name}_blocks": plan.blocks(batch, 64),
                f"{name}_mb": scratch / 1e6,
            }
        rows.append(row)
    columns = ["batch"] + [
        f"{name}_{what}" for what in ("splits", "blocks", "mb") for name in ("planned", "fixed")
    ]
    return pd.DataFrame(rows)[columns]


def measure(profile: str) -> list[dict]:
    """Rows: impl 'split_k' as planned, impl 'split_k_fixed' with the batch-invariant number of splits."""
    batches = {"quick": (1, 16, 64), "full": (1, 4, 8, 16, 32, 64, 128)}[profile]
    device = planning.device_of(torch.empty(0, device="cuda"))
    rows = []
    for batch in batches:
        for label, splits in (
            ("split_k", planned(batch, device=device)),
            (FIXED, invariant(batch, device=device)),
        ):
            shape = {"tile_class": "sm120"} | ({"num_splits": splits} if splits > 1 else {})
            point = Point("sparse_mla_decode", "split_k" if splits > 1 else "mma", batch, **shape)
            rows += [{**row, "impl": label} for row in experiments.measure_points([point])]
    return rows


experiments.register(EXPERIMENT, measure)
