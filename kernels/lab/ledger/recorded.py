"""Finds the rows of recorded runs that a claim speaks of."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

TARGET_CAPABILITY = "12.0"
LARGEST = "largest"


def load(runs: Path, name: str) -> pd.DataFrame:
    """One table of every recorded run, newest run first.

    runs: data/runs. name: 'measurements.csv' or 'profile.csv'. Adds device_name, capability and utc from
    run.json, and drops points whose status is not ok. Empty where nothing is recorded.
    """
    frames = []
    for path in sorted(runs.glob(f"*/*/{name}")):
        run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        frame = pd.read_csv(path)
        device = run.get("device", {})
        capability = device.get("capability", "")
        frame["capability"] = (
            ".".join(map(str, capability)) if isinstance(capability, list) else str(capability)
        )
        frame["device_name"] = device.get("name", "unnamed device")
        frame["utc"] = run.get("utc", "")
        frames.append(frame)
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    if "status" in table:
        table = table[table["status"].isna() | (table["status"] == "ok")]
    return table.sort_values("utc", ascending=False, kind="stable").reset_index(drop=True)


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
    """The rows of the newest run, a run on the campaign's kind of card before any other."""
    if table.empty:
        return table
    own = table[table["capability"] == TARGET_CAPABILITY]
    table = own if not own.empty else table
    return table[table["utc"] == table["utc"].iloc[0]]


def same_card(table: pd.DataFrame) -> bool:
    """True when the rows come from the campaign's kind of card."""
    return bool(len(table)) and table["capability"].iloc[0] == TARGET_CAPABILITY


def step_ratios(table: pd.DataFrame, before: str, after: str) -> pd.DataFrame:
    """Throughput of the decode step, stage `after` over stage `before`, where one run has both.

    Columns: batch, context, max_context, ratio, device_name, capability.
    """
    both = pick(table, op="decode_step")
    if both.empty:
        return pd.DataFrame()
    keys = ["batch", "context", "max_context"]
    for run in both["utc"].unique():
        rows = newest_of(both, run)
        first = rows[rows["stage"] == before].groupby(keys)["median_us"].min()
        last = rows[rows["stage"] == after].groupby(keys)["median_us"].min()
        ratio = (first / last).dropna().rename("ratio").reset_index()
        if len(ratio):
            return ratio.assign(
                device_name=rows["device_name"].iloc[0], capability=rows["capability"].iloc[0]
            )
    return pd.DataFrame()


def newest_of(table: pd.DataFrame, utc: str) -> pd.DataFrame:
    """The rows of the run with this time stamp."""
    return table[table["utc"] == utc]


def widest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the largest configured context, where the campaign's last fix shows most."""
    return table if table.empty else table[table["max_context"] == table["max_context"].max()]
