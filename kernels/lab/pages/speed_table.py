"""The README's speed table, generated from the newest recorded run that holds the ladder."""

from __future__ import annotations

import pandas as pd

from kernels.lab import records
from kernels.lab.records import Record

PART = "speed-table"
EMPTY = (
    "No GPU run is recorded yet. `make book PROFILE=full` on a machine with an NVIDIA GPU measures one; "
    "`make record` keeps it and fills this table."
)
COLUMNS = (
    ("per-head SIMT", {"impl": "simt"}),
    ("MMA", {"impl": "mma"}),
    ("auto, sm_120 limits", {"impl": "auto", "tile_class": "sm120"}),
    ("auto, native", {"impl": "auto", "tile_class": "native"}),
    ("FlashMLA", {"impl": "flash_mla"}),
)


def block(record: Record | None = None) -> str:
    """The Markdown between the markers. record: the newest one that holds the experiment, by default."""
    record = record or records.newest("ladder")
    if record is None:
        return EMPTY
    rows = record.rows("ladder")
    rows = rows[(rows["status"] == "ok") & (rows["timer"] == "chain")]
    lines = [
        "Microseconds a call, H = 64, K = 512, page 64, many calls in one CUDA graph (less is faster).",
        "",
        "| batch | " + " | ".join(name for name, _ in COLUMNS) + " | auto ÷ FlashMLA |",
        "|--:|" + "--:|" * (len(COLUMNS) + 1),
    ]
    for batch in sorted(rows["batch"].unique()):
        times = [_time(rows[rows["batch"] == batch], chosen) for _, chosen in COLUMNS]
        ours, peer = times[-2], times[-1]
        ratio = f"{ours / peer:.2f}" if ours and peer else "–"
        lines.append(f"| {batch} | " + " | ".join(_shown(value) for value in times) + f" | {ratio} |")
    return "\n".join([*lines, "", record.evidence().line()])


def _time(rows: pd.DataFrame, chosen: dict[str, str]) -> float | None:
    for column, value in chosen.items():
        rows = rows[rows[column] == value]
    return float(rows["median_us"].iloc[0]) if len(rows) else None


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
