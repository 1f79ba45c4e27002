"""A share of few candidates, tile by tile and as one wide tile: what the compiler makes of either."""

from __future__ import annotations

import pandas as pd

from kernels.lab.chapters.serialised import waits
from kernels.lab.compile import compile_many, make_request
from kernels.sparse_mla.tiles import Tile

BEFORE = Tile(64, 32, 8, 2, True)
TILE = Tile(64, 128, 8, 1, True)
WINDOW, SELECTED = 128, 512
# Name, tile, splits
CASES = (
    ("tile by tile, tiles of 32", BEFORE, 7),
    ("one wide tile", TILE, 8),
    ("a wide tile and a rest", TILE, 4),
    ("a loop over wide tiles", TILE, 2),
)


def compare(target: str = "sm_90") -> pd.DataFrame:
    """Columns kernel, splits, candidates (of the largest share), registers, shared_kib, spill_bytes, barriers,
    in_loop (of these, in its loop), products (instructions), waits (for products).

    Of a row of 128 + 512 candidates.

    Raises:
        RuntimeError: a kernel does not compile.
    """
    shape = {"topk": WINDOW, "extra_topk": SELECTED}
    requests = [
        make_request("sparse_mla", "staged", tile, target, num_splits=splits, **shape)
        for _, tile, splits in CASES
    ]
    rows = []
    for (name, tile, splits), one in zip(CASES, compile_many(requests), strict=True):
        if not one.ok:
            raise RuntimeError(f"{tile} for {target}: {one.error}")
        unit = 16 if tile.wide else tile.block_t
        rows.append(
            {
                "kernel": name,
                "splits": splits,
                "candidates": -(-(WINDOW + SELECTED) // unit // splits) * unit,
                "registers": one.registers,
                "shared_kib": one.shared_bytes / 1024,
                "spill_bytes": one.spill_bytes,
                "barriers": one.counts.opcodes.get("BAR", 0),
                "in_loop": one.main_loop.counts.opcodes.get("BAR", 0) if one.main_loop else 0,
                "products": one.counts.opcodes.get("HGMMA", 0),
                "waits": waits(one.sass),
            }
        )
    return pd.DataFrame(rows)
