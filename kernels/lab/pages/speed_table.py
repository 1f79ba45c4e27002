"""The README's speed table, generated from the newest recorded run that holds the ladder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kernels.lab import records
from kernels.lab.records import Record, place

BEGIN, END = "<!-- speed-table:begin -->", "<!-- speed-table:end -->"
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


def readme() -> Path:
    """README.md at the root."""
    return place.root() / "README.md"


def updated(text: str, content: str | None = None) -> str:
    """The README's text with the block replaced. Raises ValueError where a marker is missing or doubled."""
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            raise ValueError(f"README.md has {text.count(marker)} lines {marker}; accepted: exactly one")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{content if content is not None else block()}\n{END}{tail}"


def write() -> bool:
    """Bring README.md up to date; True when it changed, False when it was right or has no markers yet."""
    path = readme()
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text:
        return False
    new = updated(text)
    if new == text:
        return False
    place.write_text(path, new)
    return True
