"""Chapter 4's pictures: which SMs a grid reaches, and the best number of splits for each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke

from kernels.lab.evidence import Evidence
from kernels.lab.figures import heat_map, style
from kernels.lab.figures.diagrams.parts import canvas, say

IDLE = "#cdd3da"
FILL = (IDLE, style.SKY, style.BLUE, "#0b2e59")
COLUMNS = 47


def sm_map(grids: pd.DataFrame, sm_count: int = 188) -> Figure:
    """One small field of SMs for each batch (rows) and policy (columns), coloured by the blocks that each
    gets.

    grids: rows of `split_policy.grid_table`. Blocks are dealt out in turn, one a multiprocessor.
    """
    batches, policies = list(dict.fromkeys(grids["batch"])), list(dict.fromkeys(grids["policy"]))
    lines = -(-sm_count // COLUMNS)
    wide, tall, pitch = 52.0, lines * 2.0 + 3.6, 1.0
    fig, ax = canvas(
        0.9 + 0.86 * len(batches), (-16, wide * len(policies)), (-tall * len(batches) - 2.6, 3.4)
    )
    for column, policy in enumerate(policies):
        say(ax, column * wide, 2.6, _title(policy), bold=True, size=10)
    for row, batch in enumerate(batches):
        top = -tall * row - 3.0
        say(ax, -16, top - lines + 1.2, f"batch\n{batch}", bold=True, size=9.5)
        for column, policy in enumerate(policies):
            grid = grids[(grids["batch"] == batch) & (grids["policy"] == policy)].iloc[0]
            each, more = divmod(int(grid["blocks"]), sm_count)
            for index in range(sm_count):
                level = min(each + (index < more), len(FILL) - 1)
                x, y = column * wide + index % COLUMNS * pitch, top - index // COLUMNS * 2.0
                ax.add_patch(Rectangle((x, y), 0.8, 1.6, facecolor=FILL[level], edgecolor="none"))
            many = f"{grid['blocks']:,} blocks on {grid['busy_sms']} SMs"
            say(ax, column * wide, top + 2.5, many, size=8.5, colour=style.MUTED)
    for level, text in enumerate(("no block", "one", "two", "three or more")):
        x = level * 24.0
        bottom = -tall * len(batches) - 2.2
        ax.add_patch(Rectangle((x, bottom), 1.6, 1.6, facecolor=FILL[level], edgecolor="none"))
        say(ax, x + 2.4, bottom + 0.8, text, size=9)
    return fig


def _title(policy: str) -> str:
    return {"unsplit": "no split", "campaign": "campaign's policy", "default": "this book's default"}.get(
        policy, policy
    )


def split_map(
    rows: pd.DataFrame, marks: dict[str, dict[int, int]], evidence: Evidence | None = None
) -> Figure:
    """Time over the batch's best, for every measured number of splits; what policies choose is outlined.

    rows: measurements with batch, num_splits, median_us. marks: policy -> batch -> splits; at most two
    policies.
    """
    timed = rows[rows["status"] == "ok"] if len(rows) else rows
    grid = timed.pivot_table(index="batch", columns="num_splits", values="median_us") if len(timed) else timed
    if len(timed):
        grid = grid.div(grid.min(axis=1), axis=0)
        grid.index, grid.columns = grid.index.astype(int), grid.columns.astype(int)
    fig = heat_map(
        grid if len(timed) else pd.DataFrame(),
        evidence,
        x_label="splits",
        y_label="batch (requests)",
        unit="time over the batch's best",
        fmt="{:.2f}",
    )
    if len(timed):
        _outline(fig.axes[0], grid, marks)
    return fig


def _outline(ax, grid: pd.DataFrame, marks: dict[str, dict[int, int]]) -> None:
    looks: Sequence[tuple[str, str, float]] = (("-", style.ORANGE, 0.42), ("--", "white", 0.47))
    columns = list(grid.columns)
    for order, ((policy, chosen), (dash, tint, half)) in enumerate(zip(marks.items(), looks, strict=False)):
        for batch, splits in chosen.items():
            if batch not in grid.index:
                continue
            row = list(grid.index).index(batch)
            column = min(range(len(columns)), key=lambda i, s=splits: abs(math.log(columns[i] / s)))
            corner = (column - half, row - half)
            box = Rectangle(
                corner, 2 * half, 2 * half, fill=False, edgecolor=tint, linestyle=dash, linewidth=2
            )
            box.set_path_effects([Stroke(linewidth=3.4, foreground=style.INK), Normal()])
            ax.add_patch(box)
        ax.annotate(
            f"{'solid' if dash == '-' else 'dashed'}: {policy}",
            (0.32 * order, 1),
            xycoords="axes fraction",
            xytext=(0, 5),
            textcoords="offset points",
            fontsize=9,
            color=style.INK,
            fontweight="bold",
        )
