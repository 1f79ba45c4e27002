"""A pair of blocks by the GPU's timer, who does what when: data/pair_timeline.csv."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style

DATA = Path(__file__).resolve().parents[3] / "data" / "pair_timeline.csv"
# Kinds of step, in the order of the legend; what waits is pale
COLOURS = {
    "asking": style.ORANGE,
    "scores": style.BLUE,
    "output": style.PURPLE,
    "giving parts away": style.GREEN,
    "finishing its part": style.BROWN,
    "waiting": style.GREY,
}
NARROW_US = 0.35  # steps below it have no room for a number


@lru_cache
def steps() -> pd.DataFrame:
    """Every step: who, step, tile (0: of none), begin, end (medians over the blocks), latest (of any block), kind.

    Times are in microseconds since the kernel before was done. Also the shape, device and date.

    Raises:
        ValueError: a step of no kind that `COLOURS` knows.
    """
    rows = pd.read_csv(DATA)
    rows["kind"] = rows["step"].where(~rows["step"].str.startswith(("waiting", "setting up")), "waiting")
    unknown = sorted(set(rows["kind"]) - set(COLOURS))
    if unknown:
        raise ValueError(f"steps {unknown} are of no kind; accepted: {list(COLOURS)}")
    return rows.assign(tile=rows["tile"].fillna(0).astype(int), length=rows["end"] - rows["begin"])


def evidence() -> Evidence:
    """The device and the day of the timeline."""
    first = steps().iloc[0]
    return Evidence(
        "recorded", device=first["device"], date_utc=first["date"], note="one launch of many in a chain"
    )


def when(who: str, step: str, tile: int = 0, moment: str = "end") -> float:
    """The begin, end or latest end of a step.

    Raises:
        KeyError: no such step, or several.
    """
    rows = steps()
    found = rows[(rows["who"] == who) & (rows["step"] == step) & (rows["tile"] == tile)]
    if len(found) != 1:
        raise KeyError(f"{who}, {step}, tile {tile}: {len(found)} steps")
    return float(found[moment].iloc[0])


def figure() -> Figure:
    """A bar for the warps that ask and one for each team, cut at the ends of their steps."""
    rows = steps()
    names = list(dict.fromkeys(rows["who"]))
    fig, ax = plt.subplots(figsize=(style.WIDTH, 3.4))
    for row in rows.itertuples():
        place, tint = names.index(row.who), COLOURS[row.kind]
        pale = row.kind == "waiting"
        ax.barh(place, row.length, left=row.begin, height=0.55, color=tint, edgecolor="white", linewidth=1,
                alpha=0.35 if pale else 1)  # fmt: skip
        if row.tile and not pale and row.length >= NARROW_US:
            ax.text(row.begin + row.length / 2, place, f"tile {row.tile}", ha="center", va="center", fontsize=8.5,
                    color=style.ink_on(tint))  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, rows["end"].max() * 1.02)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("µs since the kernel before was done; median of all blocks")
    fig.legend(
        handles=[
            Patch(color=tint, label=kind, alpha=0.35 if kind == "waiting" else 1)
            for kind, tint in COLOURS.items()
        ],
        loc="outside upper left", ncols=6, fontsize=9, handlelength=0.9, handleheight=0.9, columnspacing=1.2,
        handletextpad=0.5,
    )  # fmt: skip
    return style.finish(fig, evidence())
