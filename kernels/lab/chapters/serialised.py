"""One abandoned version of the staged kernel, made again from the shipped one: the sum of weights as a tile.

The edit is three lines. Its point is what the assembler makes of it, so it is compiled for sm_90 beside the
shipped kernel.
"""

from __future__ import annotations

import re

import pandas as pd

from kernels.lab.chapters.edited import compile_versions
from kernels.sparse_mla.tiles import Tile

EDITS = (
    (
        "total = gl.full([BLOCK_H], 0.0, gl.float32, layout=LM)",
        "total = gl.zeros([BLOCK_H, BLOCK_T], gl.float32, layout=S2)",
    ),
    (
        "total = total * rescale + gl.sum(weights, 1)",
        "total = total * rescale[:, None] + weights",
    ),
    (
        "accs = (warpgroup_mma_wait(0, deps=[acc]),)",
        "total = gl.sum(total, 1)\n        accs = (warpgroup_mma_wait(0, deps=[acc]),)",
    ),
)
TILE = Tile(64, 32, 8, 2, True)


def waits(sass: str) -> int:
    """Instructions that wait for a warp group's products, in a disassembly."""
    return len(re.findall(r"\bWARPGROUP\.DEPBAR\b", sass))


def warning(log: str) -> str:
    """ptxas's remark about serialised products, with its number; "" without one."""
    found = re.search(r"\((C\d+)\)[^:]*: (wgmma\.mma_async instructions are serialized[^\n]*)", log)
    return f"{found.group(1)}: {found.group(2)}" if found else ""


def compile_pair(tile: Tile = TILE) -> pd.DataFrame:
    """Compile the shipped and the edited kernel for sm_90.

    Returns:
        version ("reduced in each tile" as shipped, "carried as a tile"), products (HGMMA in the SASS), waits,
        registers, spill_bytes, warning (ptxas's words, "" where it is content).
    """
    built = compile_versions([{}, {"staged": EDITS}], tile)
    return pd.DataFrame(
        {
            "version": version,
            "products": len(re.findall(r"\bHGMMA\b", one.sass)),
            "waits": waits(one.sass),
            "registers": one.registers,
            "spill_bytes": one.spill_bytes,
            "warning": warning(one.log),
        }
        for version, one in zip(("reduced in each tile", "carried as a tile"), built, strict=True)
    )
