"""A block's share in one pass: the candidate's machine code beside the shipped kernel's."""

from __future__ import annotations

import pandas as pd

from kernels.lab.candidates.plan import CHUNK_T, WARPS, chunks_of
from kernels.lab.compile import compile_many, make_request
from kernels.sparse_mla.tiles import Tile

WINDOW, SELECTED, SPLITS = 128, 512, 7
TURNS = chunks_of(WINDOW, SELECTED, SPLITS)
SHIPPED = Tile(64, CHUNK_T, WARPS, 2, True)
CANDIDATE = Tile(64, CHUNK_T, WARPS, 1, True)


def compare() -> pd.DataFrame:
    """Columns kernel, registers, shared_kb, spill_bytes, barriers (that a block passes).

    Of a row of 128 + 512 candidates in seven splits, whose largest share is three tiles or chunks.
    """
    shape = {"num_splits": SPLITS, "extra_topk": SELECTED, "topk": WINDOW}
    requests = [
        make_request("kernels.sparse_mla.signatures", "staged", SHIPPED, "sm_90", **shape),
        make_request("kernels.lab.candidates.signatures", "one_pass", CANDIDATE, "sm_90", **shape),
    ]
    rows = []
    for name, one in zip(("tile by tile (shipped)", "in one pass"), compile_many(requests), strict=True):
        in_loop = one.main_loop.counts.opcodes.get("BAR", 0) if one.main_loop else 0
        rows.append(
            {
                "kernel": name,
                "registers": one.registers,
                "shared_kb": one.shared_bytes / 1024,
                "spill_bytes": one.spill_store_bytes,
                # A loop of so many turns: the largest share in tiles of as many candidates
                "barriers": one.counts.opcodes.get("BAR", 0) + (TURNS - 1) * in_loop,
            }
        )
    return pd.DataFrame(rows)
