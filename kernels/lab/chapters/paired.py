"""Ideas that were timed in pairs, the kernel without and with them in one run: data/paired_attempts.csv."""

from functools import lru_cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style

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
    "short_signs": "signs from prmt",
    "asked_first": "rows before words",
    "own_scales": "own scales",
    "as_shipped": "as shipped",
    "bytes_as_operands": "bytes as operands",
    "wide_for_32": "a wide tile for 32 heads",
    "copied_rows": "rows copied whole",
    "one_team": "one large team",
    "two_tiles_first": "two tiles first",
    "queries_kept": "queries in registers",
    "smaller_tiles": "tiles of 32, as shipped",
    "prefetched_indices": "indices on their way",
    "wide_team": "one team of eight warps",
    "eight_askers": "eight warps that ask",
    "read_early": "all reads first",
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


def saved(idea: str, batch: int, topk: int = 512, swa_tokens: int = 0, heads: int | None = None) -> float:
    """The share of time that an idea saved at a shape, in per cent. heads: needed where the log has several.

    Raises:
        ValueError: no such pair, or several.
    """
    rows = log().query("idea == @idea and batch == @batch and topk == @topk and swa_tokens == @swa_tokens")
    if heads is not None:
        rows = rows[rows["heads"] == heads]
    if len(rows) != 1:
        raise ValueError(f"idea={idea!r}, batch={batch}: {len(rows)} pairs in {LOG.name} with heads={heads}")
    return float(rows["saved"].iloc[0])


COLUMNS = {
    "label": "idea",
    "shape": "batch, heads, candidates",
    "before_us": "without (µs)",
    "after_us": "with (µs)",
    "saved": "saved (%)",
}
FORMATS = {"before_us": "{:.1f}", "after_us": "{:.1f}", "saved": "{:+.1f}"}


MARKERS = {"512 candidates": "o", "128 + 512 candidates": "s", "2,048 candidates": "D"}
APART = 4.4  # per cent of the axis between dots that may stand in one line
DOT = 0.25  # inches from a dot to the one below it


def _marker(row) -> str:
    window = f"{row.swa_tokens} + " if row.swa_tokens else ""
    return MARKERS[f"{window}{row.topk:,} candidates"]


def lines(values: list[float], apart: float) -> list[int]:
    """A line for each of ascending values, so that those closer than `apart` stand in different ones."""
    last: list[float] = []
    found = []
    for value in values:
        line = next((line for line, before in enumerate(last) if value - before >= apart), len(last))
        last[line : line + 1] = [value]
        found.append(line)
    return found


def figure(found: pd.DataFrame, evidence: Evidence | None = None) -> Figure:
    """A row an idea, a dot a shape at the share of time saved, with its batch in it; hollow below 64 heads."""
    apart = APART / 100 * (found["saved"].max() - found["saved"].min())
    ideas = {name: rows.sort_values("saved") for name, rows in found.groupby("label", sort=False)}
    places = {name: lines(list(rows["saved"]), apart) for name, rows in ideas.items()}
    tall = {name: max(0.4, DOT * (1 + max(at)) + 0.1) for name, at in places.items()}
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.2 + sum(tall.values())))
    top, middles = 0.0, []
    for name, rows in ideas.items():
        middles.append(top + tall[name] / 2)
        first = middles[-1] - DOT / 2 * max(places[name])
        for row, line in zip(rows.itertuples(), places[name], strict=True):
            tint = style.BLUE if row.saved > 0 else style.VERMILLION
            hollow, y = row.heads < 64, first + DOT * line
            ax.scatter(
                row.saved, y, s=190, marker=_marker(row), linewidths=1.4, edgecolors=tint,
                facecolors="white" if hollow else to_rgba(tint, 0.3), zorder=3,
            )  # fmt: skip
            # Pale dots and dark numbers: both themes can read them
            ax.text(row.saved, y, str(row.batch), ha="center", va="center_baseline", fontsize=7.5, zorder=4)
        top += tall[name]
        ax.axhline(top, color=style.MUTED, linewidth=0.4, alpha=0.5)
    ax.axvline(0, color=style.MUTED, linewidth=1)
    ax.set_yticks(middles, list(ideas))
    ax.set_ylim(top, 0)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.06)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %" if value else "0")
    ax.set_xlabel("time saved (lost: to the left); the number is the batch")
    shown = {_marker(row) for row in found.itertuples()}
    handles = [
        Line2D([], [], marker=marker, linestyle="", color=style.GREY, markersize=9, label=name)
        for name, marker in MARKERS.items()
        if marker in shown
    ]
    if (found["heads"] < 64).any():
        few = " and ".join(str(count) for count in sorted(set(found["heads"]) - {64}))
        handles.append(
            Line2D([], [], marker="o", linestyle="", markeredgecolor=style.GREY, markerfacecolor="white",
                   markeredgewidth=1.4, markersize=9, label=f"hollow: {few} heads")
        )  # fmt: skip
    fig.legend(handles=handles, loc="outside upper left", ncols=4, fontsize=9, handletextpad=0.4)
    return style.finish(fig, evidence)
