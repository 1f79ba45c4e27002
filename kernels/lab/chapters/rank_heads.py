"""What a tensor-parallel rank computes with its few heads, alone or padded to 64."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kernels.lab import roofline
from kernels.sparse_mla import plan as planning

PADDED = 64


def counts(
    batch: int = 64,
    real_heads: Iterable[int] = (8, 16, 32, 64),
    topk: int = 512,
    device=planning.RTX_PRO_6000,
) -> pd.DataFrame:
    """Columns real_heads, computed_heads, block_h, blocks, mma_rows, useful, query_output_kb, kv_requests.

    One row a number of real heads, and one for 8 padded to 64. mma_rows: rows of the matrix products of one
    request's head groups. useful: real heads over these rows, in percent. query_output_kb: query and output
    bytes a request. kv_requests: how often each KV entry is asked for.
    """
    rows = []
    for real, computed in [*((heads, heads) for heads in real_heads), (8, PADDED)]:
        plan = planning.plan(batch, computed, topk, device=device, impl="split_k", tile_class="sm120")
        groups = -(-computed // plan.tile.block_h)
        rows.append(
            {
                "real_heads": real,
                "computed_heads": computed,
                "block_h": plan.tile.block_h,
                "blocks": plan.blocks(batch, computed),
                "mma_rows": groups * plan.tile.block_h,
                "useful": 100 * real / (groups * plan.tile.block_h),
                "query_output_kb": 2 * 2 * roofline.HEAD_DIM * computed / 1024,
                "kv_requests": groups,
            }
        )
    return pd.DataFrame(rows)


def padding_ratio(rows: pd.DataFrame) -> dict[str, float]:
    """'batch B, class' -> time of 8 heads over the time of 64, from the experiment `padded_heads`."""
    rows = rows[(rows["status"] == "ok") & (rows["impl"] == "auto")] if len(rows) else rows
    if rows.empty:
        return {}
    table = rows.pivot_table(index=["batch", "tile_class"], columns="heads", values="median_us")
    if not {8, PADDED} <= set(table.columns):
        return {}
    names = {"sm120": "sm_120 tiles", "native": "native tiles"}
    found = (table[8] / table[PADDED]).dropna()
    return {f"batch {batch}, {names[kind]}": float(value) for (batch, kind), value in found.items()}
