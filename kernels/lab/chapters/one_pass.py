"""A block's share in one pass: the candidate's machine code beside the shipped kernel's."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from kernels.lab.candidates.plan import TILE, chunks_of
from kernels.lab.compile import compile_many, make_request

WINDOW, SELECTED, SPLITS = 128, 512, 7
TURNS = chunks_of(WINDOW, SELECTED, SPLITS)
SHIPPED = replace(TILE, num_stages=2)


def compare() -> pd.DataFrame:
    """Columns kernel, registers, shared_kb, spill_bytes, outside, in_loop: the last two are barrier instructions.

    Of a row of 128 + 512 candidates in seven splits, whose largest share is `TURNS` tiles or chunks.
    """
    shape = {"num_splits": SPLITS, "extra_topk": SELECTED, "topk": WINDOW}
    requests = [
        make_request("kernels.sparse_mla.signatures", "staged", SHIPPED, "sm_90", **shape),
        make_request("kernels.lab.candidates.signatures", "one_pass", TILE, "sm_90", **shape),
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
                "outside": one.counts.opcodes.get("BAR", 0) - in_loop,
                "in_loop": in_loop,
            }
        )
    return pd.DataFrame(rows)
