"""The kernel for 8 heads, whose operands are the cache's bytes: who holds them, what a candidate costs, what waits."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from kernels.lab.chapters.edited import compile_versions
from kernels.lab.compile import compile_many, make_request, sass
from kernels.lab.evidence import Evidence
from kernels.sparse_mla.tiles import FEW_HEADS_TILES, Tile

DATA = Path(__file__).resolve().parents[3] / "data" / "few_heads_samples.csv"
# Name, tile; 512 candidates in 4 splits are a loop for both
CASES = (("heads as rows", Tile(16, 32, 4)), ("candidates as rows", Tile(*FEW_HEADS_TILES[0])))
# Columns of `compare` by class of instruction
CLASSES = {
    "integer": ("integer",),
    "conversions": ("conversion",),
    "float": ("fma",),
    "products": ("tensor",),
    "shared": ("shared_load", "shared_store"),
    "barriers": ("barrier",),
}
WAITS = {
    "queue": "for a place in the queue",
    "shared": "for shared memory or a shuffle",
    "memory": "for memory",
    "barrier": "for a barrier",
}


def lanes_of(layout, each: int, group: int | None = None) -> np.ndarray:
    """The lane that holds each of the first warp's words, [rows, words]; of one group, if the layout has groups.

    each: words at one place of the layout.
    """
    bases = [layout.reg_bases, layout.lane_bases]
    found = {}
    for register in range(1 << len(bases[0])):
        for lane in range(1 << len(bases[1])):
            place = [0] * len(layout.shape)
            for number, vectors in zip((register, lane), bases, strict=True):
                for bit, vector in enumerate(vectors):
                    if number >> bit & 1:
                        place = [a ^ b for a, b in zip(place, vector, strict=True)]
            found[tuple(place)] = lane
    mine = {place[-2:]: lane for place, lane in found.items() if group is None or place[0] == group}
    rows, words = (1 + max(place[dim] for place in mine) for dim in (0, 1))
    return np.repeat([[mine[row, word] for word in range(words)] for row in range(rows)], each, axis=1)


def compare(targets=("sm_120", "sm_90")) -> pd.DataFrame:
    """What the multiplying warps of either kernel issue for a candidate, 8 heads and 512 candidates in 4 splits.

    Columns: target, kernel, issued (instructions a candidate, in the loop over tiles), of these those of `CLASSES`;
    asking: what the warps that only ask issue beside them.

    Raises:
        RuntimeError: a kernel does not compile, or has no loop.
    """
    asked = [(target, name, tile) for target in targets for name, tile in CASES]
    requests = [
        make_request("sparse_mla", "staged", tile, target, heads=8, num_splits=4) for target, _, tile in asked
    ]
    rows = []
    for (target, name, tile), one in zip(asked, compile_many(requests), strict=True):
        if not one.ok or one.main_loop is None:
            raise RuntimeError(f"{tile} for {target}: {one.error or 'no main loop'}")
        # Of two teams, one takes a tile
        warps = tile.num_warps // 2 if tile.few else tile.num_warps
        counts, each = one.main_loop.counts, warps / tile.block_t
        row = {"target": target, "kernel": name, "issued": each * sum(counts.opcodes.values())}
        row["asking"] = asking(one, tile)
        rows.append(row | {name: each * sum(counts[c] for c in group) for name, group in CLASSES.items()})
    return pd.DataFrame(rows)


def asking(one, tile: Tile) -> float:
    """Instructions a candidate of the warps that only ask for rows; 0 where none do.

    A warp's lanes ask one after the other: the inner loop around the copy runs once a candidate. What writes zeros
    for absent candidates is left out.
    """
    copying = sorted(
        (loop for loop in one.loops if "UBLKCP" in loop.counts.opcodes), key=lambda loop: loop.counts.total
    )
    if not copying:
        return 0.0
    inner, outer = copying[0].counts, copying[1].counts
    zeros = outer.opcodes.get("STS", 0)
    around = outer.total - inner.total - zeros
    return inner.total + around * tile.producer_warps / tile.block_t


def foreseen() -> tuple[int, int]:
    """Instructions of a turn of a team's loop on sm_90: as shipped, and where the compiler may foresee addresses."""
    versions = ({}, {"few_heads": (("opaque(n % TILES)", "n % TILES"),)})
    built = compile_versions(versions, Tile(*FEW_HEADS_TILES[1]), heads=8)
    shipped, other = (sass.main_loop(sass.loops(*sass.parse(one.sass))).counts.total for one in built)
    return shipped, other


@lru_cache
def samples() -> pd.DataFrame:
    """Where the warps of the kernel were found, section by section of its machine code.

    Columns: section, instructions, time (share in per cent), and the same for what was waited for there (`WAITS`).
    """
    rows = pd.read_csv(DATA)
    whole = rows["samples"].sum()
    return rows.assign(
        time=100 * rows["samples"] / whole, **{name: 100 * rows[name] / whole for name in WAITS}
    )


def evidence() -> Evidence:
    """The device and the day of the samples."""
    rows = pd.read_csv(DATA)
    return Evidence(
        "recorded",
        device=rows["device"].iloc[0],
        date_utc=rows["date"].iloc[0],
        note="ncu's samples of the kernel as first tried, with loads, one launch, L2 empty",
    )
