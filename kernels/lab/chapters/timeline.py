"""A block's time by the multiprocessor's clock, step by step: data/block_timeline.csv, with data/block_notes.csv."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import span

DATA = Path(__file__).resolve().parents[3] / "data"
# What a block does until a moment of the log
STEPS = {
    "tables": "asking for bytes",
    "queries": "asking for bytes",
    "scales": "asking for bytes",
    "stored": "dequantising",
    "scored": "scores",
    "weighed": "weights",
    "multiplied": "output",
    "written": "writing",
}
COLOURS = {
    "asking for bytes": style.GREY,
    "dequantising": style.ORANGE,
    "scores": style.BLUE,
    "weights": style.GREEN,
    "output": style.PURPLE,
    "writing": style.BROWN,
}
NARROW = 1400  # cycles of a step below which its number stands upright


@lru_cache
def steps() -> pd.DataFrame:
    """Every step of the two kernels in order: kernel, moment (its end), kind, tile (0: of none), start, end, length.

    Times are cycles since the kernel before was done. Also batch, heads, topk, swa_tokens, splits, blocks, device
    and date.

    Raises:
        ValueError: a moment that `STEPS` does not know.
    """
    rows = pd.read_csv(DATA / "block_timeline.csv").rename(columns={"cycles": "end"})
    name, _, number = zip(*rows["moment"].map(lambda moment: moment.partition(" ")), strict=True)
    unknown = sorted(set(name) - set(STEPS))
    if unknown:
        raise ValueError(f"moments {unknown} are of no kind of step; accepted: {list(STEPS)}")
    rows["kind"] = [STEPS[one] for one in name]
    rows["tile"] = [int(one or 0) for one in number]
    rows["start"] = rows.groupby("kernel")["end"].shift(fill_value=0)
    return rows.assign(length=rows["end"] - rows["start"])


def evidence() -> Evidence:
    """The evidence line of the timeline and of its notes."""
    first = steps().iloc[0]
    return Evidence("recorded", device=first["device"], date_utc=first["date"], note="one day's exploration")


def lengths() -> pd.DataFrame:
    """Cycles by kernel (rows) and kind of step (columns), and `whole`."""
    table = steps().pivot_table(index="kernel", columns="kind", values="length", aggfunc="sum", sort=False)
    return table[list(COLOURS)].assign(whole=table.sum(axis=1))


def note(name: str) -> float:
    """A number noted beside the timeline.

    Raises:
        KeyError: no such note.
    """
    notes = pd.read_csv(DATA / "block_notes.csv").set_index("name")["value"]
    if name not in notes:
        raise KeyError(f"name={name!r} is not in block_notes.csv; accepted: {list(notes.index)}")
    return float(notes[name])


def figure() -> Figure:
    """A bar a kernel along its cycles, cut at the ends of its steps; a kind of step has a colour."""
    rows = steps()
    kernels = list(dict.fromkeys(rows["kernel"]))
    fig, ax = plt.subplots(figsize=(style.WIDTH, 3.3))
    for place, kernel in enumerate(kernels):
        mine = rows[rows["kernel"] == kernel]
        for row in mine.itertuples():
            tint = COLOURS[row.kind]
            ax.barh(place, row.length, left=row.start, height=0.5, color=tint, edgecolor="white", linewidth=1)
            ax.text(
                row.start + row.length / 2, place, f"{row.length:,}", ha="center", va="center", fontsize=8.5,
                rotation=90 if row.length < NARROW else 0, color=style.ink_on(tint),
            )  # fmt: skip
        for tile, steps_of_it in mine[mine["tile"] > 0].groupby("tile"):
            span(ax, steps_of_it["start"].min(), steps_of_it["end"].max(), place - 0.33, f"tile {tile}")
    splits = rows.groupby("kernel")["splits"].first()
    ax.set_yticks(range(len(kernels)), [f"{kernel},\n{splits[kernel]} splits" for kernel in kernels])
    ax.set_ylim(len(kernels) - 0.65, -0.72)
    ax.set_xlim(0, 1.02 * rows["end"].max())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("cycles since the kernel before was done; median of all blocks")
    fig.legend(
        handles=[Patch(color=tint, label=kind) for kind, tint in COLOURS.items()],
        loc="outside upper left", ncols=6, fontsize=9, handlelength=0.9, handleheight=0.9, columnspacing=1.2,
        handletextpad=0.5,
    )  # fmt: skip
    return style.finish(fig, evidence())
