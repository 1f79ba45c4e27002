"""Chapter 2's grid of tiles: compiled, judged by each limit, and set beside the budget on paper."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from kernels.lab import budget, budget_compare
from kernels.lab.budget_compare import explain_shared
from kernels.lab.compile import Compiled, compile_many, make_request
from kernels.lab.compile.legality import legal
from kernels.lab.devices import target_of

SIZES = (16, 32, 64)
QUICK = [(h, t, 8, 1) for h in SIZES for t in SIZES]
QUICK += [(h, t, 4, 1) for h in SIZES[:2] for t in SIZES[:2]] + [(32, 32, 8, 2)]
MORE_STAGES = [(32, 32, 8, 3), (64, 16, 8, 2)]
KEPT_TWICE = budget_compare.KEPT_TWICE
NAMES = ("block_h", "block_t", "num_warps", "num_stages")


def tiles(profile: str) -> list[dict]:
    """The tiles of a profile: all with 8 warps, small ones with 4, one with 2 stages; `full` adds to each."""
    found = list(QUICK)
    if profile == "full":
        found += [(h, t, 4, 1) for h in SIZES for t in SIZES if (h, t, 4, 1) not in QUICK]
        found += MORE_STAGES
    return [dict(zip(NAMES, tile, strict=True)) for tile in found]


def compile_tiles(wanted: Iterable[dict], target: str = "sm_120") -> list[Compiled]:
    """The head-shared rung compiled with each tile, from the cache where it is."""
    return compile_many([make_request("sparse_mla", "mma", tile, target) for tile in wanted])


def _verdict(one: Compiled, row: dict) -> str:
    """Which limit kills a tile, in a word or two; "fits" for those that none does."""
    if one.error:
        return "compiler"
    if row["killed_by"]:
        return row["killed_by"]
    return "fits"


def reason(one: Compiled, target: str = "sm_120") -> str:
    """Why a tile is no configuration for the target, in a few words; "legal" where it is."""
    if one.error:
        return f"does not compile: {one.error}"
    found = []
    over = one.shared_bytes - target_of(target).shared_optin
    if over > 0:
        found.append(f"{over:,} B too much")
    if one.spill_bytes:
        found.append("spills")
    return ", ".join(found or legal(one, target)) or "legal"


def rows(compiled: Iterable[Compiled], target: str = "sm_120") -> pd.DataFrame:
    """One row a tile: its resources, the verdict, and the reason in words.

    Returns:
        block_h, block_t, num_warps, num_stages, shared_bytes, registers, spill_bytes, stack_bytes, blocks
        (that fit an SM at once), limiter, verdict ("fits" or what kills it), reason.
    """
    compiled = list(compiled)
    table = []
    for one, limits in zip(compiled, budget.tile_map(compiled=compiled, target=target), strict=True):
        row = {name: limits[name] for name in NAMES}
        row |= {
            name: getattr(one, name) for name in ("shared_bytes", "registers", "spill_bytes", "stack_bytes")
        }
        row |= {
            "blocks": limits["blocks"],
            "limiter": limits.get("limiter"),
            "verdict": _verdict(one, limits),
        }
        table.append(row | {"reason": reason(one, target)})
    frame = pd.DataFrame(table)
    return frame.sort_values(["num_stages", "num_warps", "block_h", "block_t"], ignore_index=True)


def beside_budget(compiled: Iterable[Compiled]) -> pd.DataFrame:
    """Budget and compiler, tile by tile, with the difference by category.

    Returns:
        tile (in words), block_h, block_t, num_warps, budget_bytes, shared_bytes, moves (in words), residual,
        registers_low, registers_high, registers, registers_say.
    """
    table = []
    for one in compiled:
        if one.error or one.tile["num_stages"] > 1:
            continue
        need = budget.tile_budget(one.block_h, one.block_t, one.num_warps, 1)
        picked, residual = explain_shared(need, one.shared_bytes)
        found = budget_compare.compare(need, one)
        said = ", ".join(f"{name} {value:+,}".replace("-", "\u2212") for name, value in picked.items())
        table.append(
            {
                "block_h": one.block_h,
                "block_t": one.block_t,
                "num_warps": one.num_warps,
                "tile": f"{one.block_h} × {one.block_t}, {one.num_warps}",
                "budget_bytes": need.shared_bytes,
                "shared_bytes": one.shared_bytes,
                "moves": said or "none needed",
                "residual": residual,
                "registers_low": need.registers_low,
                "registers_high": need.registers_high,
                "registers": one.registers,
                "registers_say": found.category,
            }
        )
    frame = pd.DataFrame(table)
    return frame.sort_values(["num_warps", "block_h", "block_t"], ignore_index=True)


def pick(
    table: pd.DataFrame, block_h: int, block_t: int, num_warps: int = 8, num_stages: int = 1
) -> pd.Series:
    """The row of one tile.

    Raises:
        KeyError: the tile is not in the table.
    """
    wanted = {"block_h": block_h, "block_t": block_t, "num_warps": num_warps, "num_stages": num_stages}
    found = table
    for name, value in wanted.items():
        if name in table.columns:
            found = found[found[name] == value]
    if found.empty:
        raise KeyError(f"tile: {wanted} is not in the table")
    return found.iloc[0]
