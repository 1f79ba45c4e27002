"""The decode step's profile by group of kernels, where a run of it exists."""

from __future__ import annotations

import pandas as pd

from kernels.lab.evidence import Evidence, missing
from kernels.lab.figures import not_recorded, share_bars
from kernels.lab.records.schema import STAGES

EXPERIMENTS = ("decode_step_profile", "decode_step")
# What the campaign changed, in its order, then what it left
GROUPS = ("attention", "combine", "indexer", "topk", "gemm_fp32", "gemm", "experts", "glue")


def profile(lab, stages: tuple[str, ...] = ("baseline",), batch: int = 16) -> tuple[pd.DataFrame, Evidence]:
    """GPU time of a decode step by group of kernels (columns) at each stage (rows), in microseconds.

    lab: the chapter's `Lab`. batch: requests; the nearest recorded batch is taken. Empty, with the reason as
    evidence, where no such profile is known.
    """
    rows, evidence = _rows(lab, stages)
    if rows.empty:
        return pd.DataFrame(), evidence
    nearest = min(rows["batch"].unique(), key=lambda found: abs(found - batch))
    table = _times(rows[rows["batch"] == nearest], "stage")
    return _in_order(table.reindex([stage for stage in STAGES if stage in table.index])), evidence


def over_batches(lab, stage: str = "baseline") -> tuple[pd.DataFrame, Evidence]:
    """GPU time of a decode step by group of kernels (columns) at each batch (rows 'batch 1' ...), in microseconds."""
    rows, evidence = _rows(lab, (stage,))
    if rows.empty:
        return pd.DataFrame(), evidence
    table = _in_order(_times(rows, "batch").sort_index())
    return table.rename(index=lambda batch: f"batch {batch}"), evidence


def products(lab, stages: tuple[str, ...]) -> tuple[pd.DataFrame, Evidence]:
    """What the profiler saw by batch and stage: launches of matrix products outside the experts, their GPU time
    and that of all kernels (ms).
    """
    rows, evidence = _rows(lab, stages)
    columns = ["batch", "stage", "launches", "products_ms", "all_ms"]
    if rows.empty:
        return pd.DataFrame(columns=columns), evidence
    ours = rows[rows["group"].isin(("gemm", "gemm_fp32"))].groupby(["batch", "stage"])
    table = pd.DataFrame(
        {
            "launches": ours["launches"].sum(),
            "products_ms": ours["gpu_us"].sum() / 1e3,
            "all_ms": rows.groupby(["batch", "stage"])["gpu_us"].sum() / 1e3,
        }
    )
    table = table.reset_index()
    table["order"] = table["stage"].map(STAGES.index)
    return table.sort_values(["batch", "order"], ignore_index=True)[columns], evidence


def _rows(lab, stages: tuple[str, ...]) -> tuple[pd.DataFrame, Evidence]:
    """The profile's good rows of some stages at the widest configured context."""
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        raise ValueError(f"stages: got {unknown}, accepted are {', '.join(STAGES)}")
    for name in EXPERIMENTS:
        try:
            rows, evidence = lab.results(name)
        except KeyError:
            continue
        if "group" not in rows.columns or rows.empty:
            continue
        rows = rows[(rows["status"] == "ok") & rows["stage"].isin(stages)]
        if len(rows):
            return rows[rows["max_context"] == rows["max_context"].max()], evidence
    return pd.DataFrame(), missing("no run in data/runs holds the decode step's profile")


def _times(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    return rows.pivot_table(index=by, columns="group", values="gpu_us", aggfunc="sum")


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    others = [group for group in table.columns if group not in GROUPS]
    return table[[*(group for group in GROUPS if group in table.columns), *others]]


def share_of(table: pd.DataFrame, stage: str, group: str) -> float | None:
    """A group's share of the step, 0 to 1; None where it is not known."""
    if table.empty or stage not in table.index or group not in table.columns:
        return None
    return float(table.loc[stage, group] / table.loc[stage].sum())


def picture(table: pd.DataFrame, evidence: Evidence):
    """Shares as stacked bars, or the panel that says that nothing is recorded."""
    if table.empty:
        return not_recorded(evidence, what="a whole decode step")
    return share_bars(table, evidence)
