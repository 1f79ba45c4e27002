"""Finds the rows of recorded runs that a claim speaks of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

TARGET_CAPABILITY = "12.0"


def load(runs: Path, name: str) -> pd.DataFrame:
    """One table of every recorded run, the best first: fresh before stale, full before quick, then newest.

    runs: data/runs. name: 'measurements' or 'profile'. Adds device_name, capability, stale and rank, and
    drops points whose status is not ok. Empty where nothing is recorded.
    """
    # Imported here, so that the ledger's arithmetic also runs beside a broken record.
    from kernels.lab.records import store

    frames = []
    for rank, record in enumerate(store.load_all(runs)):
        device = record.info["device"]
        frames.append(
            record.table(name).assign(
                device_name=device["name"],
                capability=device["capability"],
                stale=store.stale(record) is not None,
                rank=rank,
            )
        )
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    return table[table["status"] == "ok"].reset_index(drop=True)


def device_facts(path: Path, device: str) -> dict[str, str]:
    """One device's facts from data/devices.csv, fact to value, with those of its architecture.

    device: a name in the column `device`. Empty where file or device is missing.
    """
    if not path.exists():
        return {}
    table = pd.read_csv(path, dtype=str).fillna("")
    own = _facts(table, device)
    return {**_facts(table, own.get("target", "")), **own}


def _facts(table: pd.DataFrame, device: str) -> dict[str, str]:
    rows = table[table.iloc[:, 0] == device]
    return dict(zip(rows.iloc[:, 1], rows["value"], strict=True))


def pick(table: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """The rows where every named column has the wanted value; a column that is missing matches nothing."""
    for column, value in wanted.items():
        if table.empty or column not in table:
            return table.iloc[0:0]
        table = table[table[column] == value]
    return table


def newest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best run, a run on the campaign's kind of card before any other."""
    if table.empty:
        return table
    own = table[table["capability"] == TARGET_CAPABILITY]
    table = own if not own.empty else table
    return table[table["rank"] == table["rank"].min()]


def origin(table: pd.DataFrame) -> str:
    """Where the rows come from: the device, and a warning when the kernels have changed since."""
    return f"{table['device_name'].iloc[0]}{' (stale)' if table['stale'].iloc[0] else ''}"


def same_card(table: pd.DataFrame) -> bool:
    """True when the rows come from the campaign's kind of card."""
    return bool(len(table)) and table["capability"].iloc[0] == TARGET_CAPABILITY


def step_ratios(table: pd.DataFrame, before: str, after: str) -> pd.DataFrame:
    """Throughput of the decode step, stage `after` over stage `before`, where one run has both.

    Columns: batch, context, max_context, ratio, device_name, capability, stale.
    """
    both = pick(table, op="decode_step")
    if both.empty:
        return pd.DataFrame()
    keys = ["batch", "context", "max_context"]
    own_first = both.assign(other=both["capability"] != TARGET_CAPABILITY).groupby(["other", "rank"])
    for _, rows in own_first:
        first = rows[rows["stage"] == before].groupby(keys)["median_us"].min()
        last = rows[rows["stage"] == after].groupby(keys)["median_us"].min()
        ratio = (first / last).dropna().rename("ratio").reset_index()
        if len(ratio):
            return ratio.assign(
                **{name: rows[name].iloc[0] for name in ("device_name", "capability", "stale")}
            )
    return pd.DataFrame()


def widest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the largest configured context, where the campaign's last fix shows most."""
    return table if table.empty else table[table["max_context"] == table["max_context"].max()]
