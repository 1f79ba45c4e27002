"""The project's speed targets against the peers, and which of them a recorded run meets."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from kernels.lab.evidence import Evidence

DATA = Path(__file__).resolve().parents[3] / "data"
EXPERIMENTS = ("ladder", "k2048", "swa", "heads")


def evidence(found: dict[str, tuple[pd.DataFrame, Evidence]]) -> Evidence:
    """The evidence of several experiments' results in one table: the first one's, and which come from other commits."""
    _, first = next(iter(found.values()))
    apart: dict[str, list[str]] = {}
    for name, (_, one) in found.items():
        if one.kind == first.kind and one.commit != first.commit:
            apart.setdefault(one.commit, []).append(name)
    notes = [f"{' and '.join(names)} at commit {commit}" for commit, names in apart.items()]
    return replace(first, note="; ".join(filter(None, [first.note, *notes])) or None)


@lru_cache
def targets() -> pd.DataFrame:
    """The targets, data/targets.csv: a limit for a time over another in the same run, by experiment."""
    return pd.read_csv(DATA / "targets.csv")


def _timed(rows: pd.DataFrame, timer: str) -> pd.DataFrame:
    return rows[(rows["status"] == "ok") & (rows["timer"] == timer)] if len(rows) else rows


def _other(rows: pd.DataFrame, against: str, heads: int) -> pd.Series:
    """Times by batch of what a target is measured against."""
    if against.startswith("heads_"):
        chosen = rows[(rows["impl"] == "auto") & (rows["tile_class"] == "native")]
        chosen = chosen[chosen["heads"] == int(against.removeprefix("heads_"))]
    else:
        chosen = rows[(rows["impl"] == against) & (rows["heads"] == heads)]
    return chosen.groupby("batch")["median_us"].median()


def ratios(experiment: str, rows: pd.DataFrame, timer: str = "chain") -> pd.DataFrame:
    """Every ratio that an experiment's rows give for its targets.

    rows: of measurements.csv. A batch without either time has no row.

    Returns:
        id, what, batch, median_us, other_us, ratio, limit, met.
    """
    columns = ["id", "what", "batch", "median_us", "other_us", "ratio", "limit", "met"]
    rows, found = _timed(rows, timer), []
    for target in targets().query("experiment == @experiment").itertuples():
        if rows.empty:
            continue
        heads = 8 if target.against.startswith("heads_") else 64
        mine = rows[(rows["impl"] == target.impl) & (rows["tile_class"] == target.tile_class)]
        mine = mine[mine["heads"] == heads].groupby("batch")["median_us"].median()
        other = _other(rows, target.against, heads)
        for batch in sorted(set(mine.index) & set(other.index)):
            if target.batch_from <= batch <= target.batch_to:
                ratio = float(mine[batch] / other[batch])
                found.append(
                    (target.id, target.what, int(batch), mine[batch], other[batch], ratio, target.limit,
                     ratio <= target.limit)
                )  # fmt: skip
    return pd.DataFrame(found, columns=columns)


def summary(all_ratios: pd.DataFrame) -> pd.DataFrame:
    """One row a target: id, what, batches, limit, lowest, highest, met ("all", "2 of 3", or "not recorded").

    all_ratios: `ratios` of all experiments, put together.
    """
    rows = []
    for target in targets().itertuples():
        mine = all_ratios[all_ratios["id"] == target.id]
        low, high = int(target.batch_from), int(target.batch_to)
        batches = f"{low}" if low == high else f"{low} to {high}"
        if mine.empty:
            met = "not recorded"
        else:
            good = int(mine["met"].sum())
            met = "all" if good == len(mine) else f"{good} of {len(mine)}"
        lowest, highest = (mine["ratio"].min(), mine["ratio"].max()) if len(mine) else (None, None)
        rows.append((target.what, batches, target.limit, lowest, highest, met))
    return pd.DataFrame(rows, columns=["what", "batches", "limit", "lowest", "highest", "met"])


def by_batch(all_ratios: pd.DataFrame) -> pd.DataFrame:
    """Ratios to FlashMLA in the order of the targets: a row a shape and class of tiles, a column a batch ("1", ...)."""
    peers = all_ratios[~all_ratios["id"].str.startswith(("simt", "heads"))]
    wide = peers.pivot(index="what", columns="batch", values="ratio").reindex(peers["what"].unique())
    return wide.rename(columns=str).rename_axis(columns=None).reset_index()


def met_in_words(table: pd.DataFrame) -> str | None:
    """How many targets with a record are met at every batch, e.g. "7 of 12"; None without a record."""
    judged = table[table["met"] != "not recorded"]
    return f"{int((judged['met'] == 'all').sum())} of {len(judged)}" if len(judged) else None
