"""Chapter 2's map: every tile with what it needs, and the limit that kills it written on it."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style

FACES = {
    "fits": ("#bfe3d6", "", "fits"),
    "spill": ("#f6dca6", "..", "registers spill"),
    "registers": ("#f6dca6", "..", "too many registers"),
    "shared memory": ("#f3c3ac", "//", "too much shared memory"),
    "compiler": ("#d5d9de", "xx", "does not compile"),
}
ABSENT = "#eef0f2"


def tile_map(table: pd.DataFrame, evidence: Evidence | None = None) -> Figure:
    """One panel a number of warps; heads go down, tokens across; a cell prints KiB, registers and spills.

    table: `tile_space.rows`, stages of 1 only are drawn. A tile without a row is left empty and says so.
    """
    table = table[table["num_stages"] == 1]
    warps = sorted(table["num_warps"].unique())
    heads, tokens = sorted(table["block_h"].unique()), sorted(table["block_t"].unique())
    fig, axes = plt.subplots(
        len(warps), 1, figsize=(style.WIDTH, 0.9 + len(warps) * (0.5 + 0.62 * len(heads))), squeeze=False
    )
    for ax, count in zip(axes[:, 0], warps, strict=True):
        mine = table[table["num_warps"] == count]
        for line, block_h in enumerate(heads):
            for column, block_t in enumerate(tokens):
                found = mine[(mine["block_h"] == block_h) & (mine["block_t"] == block_t)]
                _cell(ax, column, line, found.iloc[0] if len(found) else None)
        ax.set(xlim=(-0.5, len(tokens) - 0.5), ylim=(len(heads) - 0.5, -0.5))
        ax.set_xticks(range(len(tokens)), [f"{value} tokens" for value in tokens])
        ax.set_yticks(range(len(heads)), [f"{value} heads" for value in heads])
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.set_title(f"{count} warps a block")
    _legend(fig, set(table["verdict"]))
    return style.finish(fig, evidence)


def _cell(ax, column: int, line: int, row) -> None:
    corner = (column - 0.48, line - 0.46)
    if row is None:
        ax.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=ABSENT, edgecolor="none"))
        ax.text(column, line, "not compiled here", ha="center", va="center", fontsize=8, color=style.MUTED)
        return
    face, hatch, _ = FACES[row["verdict"]]
    ax.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=face, edgecolor="white", hatch=hatch, linewidth=0))
    if row["verdict"] == "compiler":
        text = "no machine code"
    else:
        spill = f"{row['spill_bytes']:,} B spilled" if row["spill_bytes"] else "no spill"
        text = f"{row['shared_bytes'] / 1024:.0f} KiB · {row['registers']} registers\n{spill}"
    if row["verdict"] == "fits":
        text += f" · {row['blocks']} block{'s' if row['blocks'] != 1 else ''} an SM"
    ax.text(
        column,
        line,
        text,
        ha="center",
        va="center",
        fontsize=8.5,
        color="black",
        linespacing=1.5,
        fontweight="bold" if row["verdict"] == "fits" else "normal",
    )


def _legend(fig: Figure, verdicts: set[str]) -> None:
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=face, edgecolor="white", hatch=hatch, label=label)
        for name, (face, hatch, label) in FACES.items()
        if name in verdicts
    ]
    fig.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9)


def option_bars(options: list[dict], limit: int = 101_376, evidence: Evidence | None = None) -> Figure:
    """`budget.campaign_budget` as bars against the limit; what does not fit says which limit forbids it."""
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.2 + 0.5 * len(options)))
    parts = (
        ("query_bytes", "Q", style.BLUE),
        ("key_bytes", "K", style.SKY),
        ("other_bytes", "P", style.ORANGE),
    )
    for line, row in enumerate(options):
        left = 0.0
        for name, label, tint in parts:
            kib = row[name] / 1024
            ax.barh(line, kib, left=left, height=0.62, color=tint, edgecolor="white", linewidth=0.8)
            if kib >= 12:
                ink = "white" if tint == style.BLUE else "black"
                ax.text(
                    left + kib / 2,
                    line,
                    f"{label} {kib:.0f}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color=ink,
                )
            left += kib
        said = "fits" if row["fits"] else f"no: {row['killed_by']}"
        if row["killed_by"] == "registers":
            said += f", {row['registers']} a thread"
        short = left < limit / 1024 < left + 45  # the label would lie on the limit's line
        ax.annotate(
            f"{left:.0f} KiB  {said}",
            (limit / 1024 if short else left, line),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            fontweight="bold",
            color=style.INK if row["fits"] else style.readable(style.VERMILLION),
        )
    ax.axvline(limit / 1024, color=style.VERMILLION, linewidth=1.6, linestyle=(0, (5, 3)), zorder=0)
    ax.annotate(
        f"a block's most on sm_120: {limit / 1024:.0f} KiB",
        (limit / 1024, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        fontweight="bold",
        color=style.readable(style.VERMILLION),
    )
    ax.set_yticks(range(len(options)), [row["option"] for row in options])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlim(0, max(row["shared_bytes"] for row in options) / 1024 * 1.28)
    ax.set_xlabel("shared memory of one block (KiB): Q queries, K key tile, P probabilities and row sums")
    return style.finish(fig, evidence)
