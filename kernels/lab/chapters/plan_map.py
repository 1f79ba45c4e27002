"""The planner's tuned table as a map: tile and splits over batch and heads, for either class of tiles."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.tiles import Tile, choices, fastest

CLASSES = {"sm90": "native on an H200", "sm120": "within sm_120's limits"}
FACES = ("#cfe6f5", "#f6dca6", "#bfe3d6", "#f0cfe0", "#d9d4f0", "#f3c3ac", "#dddddd", "#dfe8b0")
HATCHES = ("", "..", "//", "xx", "\\\\", "--", "++", "oo")


def table(candidates: int = 512) -> pd.DataFrame:
    """The tuned choices for a number of candidates: device_class, heads, batch, tile, splits, blocks.

    Raises:
        ValueError: the table has no such number of candidates.
    """
    rows = [row for row in fastest() if row.candidates == candidates]
    if not rows:
        known = sorted({row.candidates for row in choices()})
        raise ValueError(f"candidates={candidates} is not in the table; accepted: {known}")
    return pd.DataFrame(
        {
            "device_class": row.device_class,
            "heads": row.heads,
            "batch": row.batch,
            "tile": row.tile,
            "splits": row.num_splits,
            "blocks": planning.Plan("staged", row.tile, row.num_splits).blocks(row.batch, row.heads),
        }
        for row in rows
    )


def words(tile: Tile) -> str:
    """A tile in the legend: "64×64, 2 buffers, 8 warps, wgmma, 4 producers", "64×128, 8 warps, wgmma, wide"."""
    parts = [f"{tile.block_h}×{tile.block_t}"]
    if tile.few:
        return ", ".join([*parts, f"{tile.num_warps} warps", "candidates as rows"] + ["in pairs"] * tile.pair)
    parts += [f"{tile.num_stages} buffers"] * (tile.num_stages > 1)
    parts += [f"{tile.num_warps} warps"] + ["wgmma"] * tile.wgmma + ["wide"] * tile.wide
    return ", ".join(parts + [f"{tile.producer_warps} producers"] * (tile.producer_warps > 0))


def figure(found: pd.DataFrame, evidence: Evidence | None = None) -> Figure:
    """One panel a class: heads down, batches across; a cell has its tile's colour and prints the splits."""
    tiles = sorted(
        set(found["tile"]),
        key=lambda t: (t.wgmma, t.block_h, t.block_t, t.num_warps, t.num_stages, t.producer_warps, t.pair),
    )
    look = {
        tile: (face, hatch)
        for tile, face, hatch in zip(tiles, FACES[: len(tiles)], HATCHES[: len(tiles)], strict=True)
    }
    kinds = [kind for kind in CLASSES if kind in set(found["device_class"])]
    fig, axes = plt.subplots(len(kinds), 1, figsize=(style.WIDTH, 1.2 + 2.1 * len(kinds)), squeeze=False)
    for ax, kind in zip(axes[:, 0], kinds, strict=True):
        mine = found[found["device_class"] == kind]
        heads, batches = sorted(set(mine["heads"])), sorted(set(mine["batch"]))
        for row in mine.itertuples():
            face, hatch = look[row.tile]
            x, y = batches.index(row.batch), heads.index(row.heads)
            ax.add_patch(
                Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=face, edgecolor="white", hatch=hatch)
            )
            ax.text(x, y, f"{row.splits}", ha="center", va="center", fontsize=10, color="black",
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": face, "edgecolor": "none"})  # fmt: skip
        ax.set(xlim=(-0.5, len(batches) - 0.5), ylim=(len(heads) - 0.5, -0.5), title=CLASSES[kind])
        ax.set_xticks(range(len(batches)), batches)
        ax.set_yticks(range(len(heads)), [f"{count} heads" for count in heads])
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
    axes[-1, 0].set_xlabel("batch (requests); the number in a cell: splits")
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=face, hatch=hatch, edgecolor="white",
                  label=words(tile))
        for tile, (face, hatch) in look.items()
    ]  # fmt: skip
    fig.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=8.5)
    return style.finish(fig, evidence)
