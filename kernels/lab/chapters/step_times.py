"""The decode step's time at the campaign's stages, where a run of it exists."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

from kernels.lab.evidence import Evidence, missing
from kernels.lab.figures import lines, not_recorded, waterfall
from kernels.lab.records import schema

EXPERIMENT = "decode_step"
CAMPAIGN = ("baseline", "mma", "split_k", "indexer_cap")
LONG_RANGE = 8  # a waterfall over more than this factor gets a logarithmic axis


def times(lab, stages: Iterable[str] = CAMPAIGN) -> tuple[pd.DataFrame, Evidence]:
    """Rows of the decode step that are right, with `ms`; none, with the reason, where no run is known."""
    try:
        rows, evidence = lab.results(EXPERIMENT)
    except KeyError:
        return schema.frame([]).assign(ms=pd.Series(dtype=float)), missing(
            "no run in data/runs holds a decode step"
        )
    return usable(rows, stages), evidence


def usable(rows: pd.DataFrame, stages: Iterable[str] = CAMPAIGN) -> pd.DataFrame:
    """The rows of whole steps that are right, at the given stages, with `ms` and its percentiles `p20_ms`, `p80_ms`."""
    rows = rows[(rows["status"] == "ok") & rows["stage"].isin(list(stages)) & (rows["op"] == "decode_step")]
    return rows.assign(ms=rows["median_us"] / 1e3, p20_ms=rows["p20_us"] / 1e3, p80_ms=rows["p80_us"] / 1e3)


def at(rows: pd.DataFrame, batch: int | None = None) -> pd.DataFrame:
    """The rows at the largest configured context, of one batch or of all; the fastest of a stage and
    batch.
    """
    if batch is not None:
        rows = rows[rows["batch"] == batch]
    if rows.empty:
        return rows
    rows = rows[rows["max_context"] == rows["max_context"].max()]
    return rows.loc[rows.groupby(["stage", "batch"])["ms"].idxmin()]


def milliseconds(rows: pd.DataFrame, batch: int, stages: Iterable[str] = CAMPAIGN) -> dict[str, float]:
    """Stage -> step time at one batch, in the stages' order."""
    chosen = at(rows, batch).set_index("stage")["ms"]
    return {stage: float(chosen[stage]) for stage in stages if stage in chosen.index}


def ratio(found: dict[str, float], before: str, after: str) -> float | None:
    """How many times faster `after` is than `before`; None where one of them is not known."""
    return found[before] / found[after] if before in found and after in found else None


def waterfall_picture(found: dict[str, float], evidence: Evidence) -> Figure:
    """What each stage took away, or the panel that says that nothing is recorded."""
    if len(found) < 2:
        return not_recorded(evidence, what="the campaign's stages")
    wide = max(found.values()) > LONG_RANGE * min(found.values())
    return waterfall(found.items(), evidence, log_y=wide)


def over_batch(rows: pd.DataFrame, evidence: Evidence) -> Figure:
    """Step time over the batch, a line a stage, at the largest configured context; bands hold the middle 60 %."""
    rows = at(rows)
    if rows.empty:
        return not_recorded(evidence, what="a whole decode step")
    return lines(rows, evidence, by="stage", y="ms", y_label="decode step (ms)", low="p20_ms", high="p80_ms")


def over_context(rows: pd.DataFrame, evidence: Evidence, batch: int) -> Figure:
    """Step time at one batch over the configured context, a line a stage."""
    rows = rows[rows["batch"] == batch]
    if rows.empty:
        return not_recorded(evidence, what="a whole decode step")
    return lines(
        rows,
        evidence,
        x="max_context",
        by="stage",
        y="ms",
        x_label="configured context (tokens)",
        y_label="decode step (ms)",
        low="p20_ms",
        high="p80_ms",
    )


def across_contexts(rows: pd.DataFrame, stage: str) -> pd.DataFrame:
    """A stage's step time (ms) at the narrowest and the widest configured context by batch, and their ratio."""
    table = rows[rows["stage"] == stage].pivot_table(index="batch", columns="max_context", values="ms")
    if len(table.columns) < 2:
        return pd.DataFrame(columns=["batch", "narrow_ms", "wide_ms", "ratio"])
    ends = table[[table.columns.min(), table.columns.max()]].dropna()
    ends.columns = ["narrow_ms", "wide_ms"]
    return ends.assign(ratio=ends["wide_ms"] / ends["narrow_ms"]).reset_index()
