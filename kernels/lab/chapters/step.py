"""The decode step's profile at a stage, where a run of it exists: chapters 1 to 3."""

from __future__ import annotations

import pandas as pd

from kernels.lab.evidence import Evidence, missing
from kernels.lab.figures import not_recorded, share_bars
from kernels.lab.records.schema import STAGES

EXPERIMENTS = ("decode_step_profile", "decode_step")


def profile(lab, stages: tuple[str, ...] = ("baseline",), batch: int = 16) -> tuple[pd.DataFrame, Evidence]:
    """GPU time of a decode step by group of kernels (columns) at each stage (rows), in microseconds.

    lab: the chapter's `Lab`. batch: requests; the nearest recorded batch is taken. Empty, with the reason as
    evidence, where no such profile is known.
    """
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        raise ValueError(f"stages: got {unknown}, accepted are {', '.join(STAGES)}")
    nothing = missing("no run in data/runs holds the decode step's profile")
    for name in EXPERIMENTS:
        try:
            rows, evidence = lab.results(name)
        except KeyError:
            continue
        if "group" not in rows.columns or rows.empty:
            continue
        rows = rows[(rows["status"] == "ok") & rows["stage"].isin(stages)]
        if rows.empty:
            continue
        nearest = min(rows["batch"].unique(), key=lambda found: abs(found - batch))
        widest = rows["max_context"].max()
        rows = rows[(rows["batch"] == nearest) & (rows["max_context"] == widest)]
        table = rows.pivot_table(index="stage", columns="group", values="gpu_us", aggfunc="sum")
        return table.reindex([stage for stage in STAGES if stage in table.index]), evidence
    return pd.DataFrame(), nothing


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
