"""Ideas that were timed in pairs, the kernel without and with them in one process: data/paired_attempts.csv."""

from functools import lru_cache
from pathlib import Path

import pandas as pd

from kernels.lab.evidence import Evidence

LOG = Path(__file__).resolve().parents[3] / "data" / "paired_attempts.csv"
LABELS = {
    "together": "loads together",
    "wide_loads": "together, wide",
    "shared_memory": "through shared memory",
    "release_result": "start at the result",
    "release_exit": "start at the end",
    "token_rows": "tokens as rows",
    "prefetch_l2": "prefetch into L2",
    "gather_only": "the gather alone",
    "cluster": "merged in a cluster",
    "warp_columns": "columns by warp",
    "several_heads": "four heads a program",
    "one_pass": "one pass, in chunks",
    "wide_tile": "one wide tile",
    "wide_rest": "a tile and a rest",
    "wide_loop": "a loop of wide tiles",
    "small_first": "a small tile first",
    "gather_at_once": "the gather at once",
    "shifts": "shifts by multiplying",
    "bytes_as_operands": "bytes as operands",
    "wide_for_32": "a wide tile for 32 heads",
}


@lru_cache
def log() -> pd.DataFrame:
    """Every pair, with label, shape in words and `saved`, the share of time saved in per cent (negative: lost).

    Raises:
        ValueError: an idea without a label.
    """
    rows = pd.read_csv(LOG)
    unknown = sorted(set(rows["idea"]) - set(LABELS))
    if unknown:
        raise ValueError(f"{LOG.name}: ideas {unknown} have no label; accepted: {list(LABELS)}")
    window = rows["swa_tokens"].map(lambda tokens: f"{tokens} + " if tokens else "")
    shape = (
        rows["batch"].astype(str)
        + ", "
        + rows["heads"].astype(str)
        + ", "
        + window
        + rows["topk"].map("{:,}".format)
    )
    return rows.assign(
        shape=shape, label=rows["idea"].map(LABELS), saved=100 * (1 - rows["after_us"] / rows["before_us"])
    )


def ideas(*names: str) -> tuple[pd.DataFrame, Evidence]:
    """The pairs of some ideas in the order asked for, with their evidence.

    Raises:
        KeyError: an idea that the log does not have.
    """
    rows = log()
    missing = [name for name in names if name not in set(rows["idea"])]
    if missing:
        raise KeyError(f"ideas={missing}: not in {LOG.name}; accepted: {sorted(set(rows['idea']))}")
    found = pd.concat([rows[rows["idea"] == name] for name in names], ignore_index=True)
    evidence = Evidence(
        "recorded",
        device=found["device"].iloc[0],
        date_utc=found["date"].iloc[0],
        note="a log of one day's attempts; sources of abandoned ones are not kept",
    )
    return found, evidence


def saved(idea: str, batch: int, topk: int = 512, swa_tokens: int = 0) -> float:
    """The share of time that an idea saved at a shape, in per cent."""
    rows = log().query("idea == @idea and batch == @batch and topk == @topk and swa_tokens == @swa_tokens")
    return float(rows["saved"].iloc[0])


COLUMNS = {
    "label": "idea",
    "shape": "batch, heads, candidates",
    "before_us": "without (µs)",
    "after_us": "with (µs)",
    "saved": "saved (%)",
}
FORMATS = {"before_us": "{:.1f}", "after_us": "{:.1f}", "saved": "{:+.1f}"}
