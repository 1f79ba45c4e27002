"""Predicted times of the rungs on the campaign's card over the batch, with either split policy."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kernels.lab import evidence as proof
from kernels.lab.chapters.split_policy import splits_of
from kernels.lab.evidence import Evidence
from kernels.lab.predict import point, predict_points
from kernels.sparse_mla import plan as planning

CARD = "rtx-pro-6000"
NAMES = {
    "mma": "MMA, no split", "split_k_campaign": "campaign's policy", "split_k": "this book's default",
}  # fmt: skip


def predicted(batches: Iterable[int] = (1, 4, 16, 64)) -> tuple[pd.DataFrame, Evidence]:
    """(batch, impl, splits, median_us, bound, low, high) of MMA and split-K under both policies, sm_120
    tiles.
    """
    asked = []
    for batch in batches:
        tile = planning.plan(batch, 64, 512, impl="split_k", tile_class="sm120").tile
        asked.append(("mma", 1, point("mma", tile, batch)))
        for name, policy in (("split_k_campaign", "campaign"), ("split_k", "default")):
            splits = splits_of(policy, batch)
            rung = (
                "split_k" if splits > 1 else "mma"
            )  # one split needs no combine, and the planner takes `mma`
            asked.append((name, splits, point(rung, tile, batch, num_splits=splits)))
    results = predict_points([one for _, _, one in asked], CARD)
    rows = [
        {"batch": one.batch, "impl": name, "splits": splits, "median_us": found.us, "bound": found.bound,
         "low": found.band[0] if found.band else None, "high": found.band[1] if found.band else None}
        for (name, splits, one), found in zip(asked, results, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows), proof.predicted("RTX PRO 6000", note=results[0].evidence)
