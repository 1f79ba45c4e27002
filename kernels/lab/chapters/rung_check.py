"""Are the rungs right? Small poisoned inputs on a CPU, full shapes on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
import torch

from kernels.lab.experiments.sparse import LSE_TOLERANCE, TOLERANCE
from kernels.sparse_mla import layout, sparse_mla_decode, sparse_mla_decode_reference
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.tiles import Tile

PAGE = 64
POISON = 0xFF  # NaN in e4m3, in bfloat16 and as a UE8M0 scale


@dataclass(frozen=True)
class Shape:
    """Rows, query heads and candidates of a check; `pages` of 64 tokens in the cache."""

    batch: int
    heads: int
    topk: int
    pages: int


SMALL = Shape(2, 4, 40, 2)
FULL = Shape(16, 64, 512, 512)


def inputs(shape: Shape, device: str, absent: bool, seed: int = 1) -> dict[str, torch.Tensor]:
    """q, kv_cache, indices, topk_length. Every byte of the cache that no live candidate names is NaN.

    absent: every fifth candidate is -1, the second row's length is half, and the last row is empty.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = shape.pages * PAGE
    q = torch.randn(shape.batch, shape.heads, layout.HEAD_DIM, generator=generator).to(torch.bfloat16)
    order = [torch.randperm(tokens, generator=generator)[: shape.topk] for _ in range(shape.batch)]
    indices = torch.stack(order).to(torch.int32)
    length = torch.full((shape.batch,), shape.topk, dtype=torch.int32)
    if absent:
        indices[:, ::5] = -1
        length[1] = shape.topk // 2
        length[-1] = 0 if shape.batch > 2 else length[-1]
    position = torch.arange(shape.topk)[None, :]
    live = indices[(position < length[:, None]) & (indices >= 0)].unique().long()
    cache = layout.allocate_cache(shape.pages, PAGE, device=device, fill=POISON)
    kv = torch.randn(live.numel(), layout.HEAD_DIM, generator=generator) * 0.5
    layout.store_kv(cache, live.to(device), kv.to(torch.bfloat16).to(device))
    names = {"q": q, "indices": indices, "topk_length": length}
    return {name: tensor.to(device) for name, tensor in names.items()} | {"kv_cache": cache}


def check(impl: str, given: dict[str, torch.Tensor], tile: Tile | None = None) -> dict:
    """One rung on one set of inputs: rel_error (RMS), lse_error, right (also: empty rows are 0 and +inf)."""
    plan = Plan(impl, tile) if tile is not None else None
    out, lse = sparse_mla_decode(**given, impl=impl, tile_class="sm120", plan=plan)
    want_out, want_lse = sparse_mla_decode_reference(**given)
    empty = torch.isinf(want_lse)
    difference = (out.double() - want_out).pow(2).mean().sqrt() / want_out.pow(2).mean().sqrt()
    apart = (lse.double() - want_lse)[~empty].abs() / want_lse[~empty].abs().clamp_min(1.0)
    empty_right = bool(torch.isinf(lse[empty]).all() and (out[empty] == 0).all())
    error, lse_error = float(difference), float(apart.max())
    right = error <= TOLERANCE and lse_error <= LSE_TOLERANCE and empty_right
    return {"impl": impl, "rel_error": error, "lse_error": lse_error, "right": right}


def check_rungs(lab, impls: Iterable[str], small: Shape = SMALL, full: Shape = FULL) -> pd.DataFrame:
    """Every rung on ordinary rows and on rows with absent candidates.

    lab: the chapter's `Lab`; the `full` shape is taken on a GPU.

    Returns:
        impl, rows (what they hold), batch, heads, topk, rel_error, lse_error, tolerance, right.
    """
    shape = full if lab.on_gpu else small
    rows = []
    for absent in (False, True):
        given = inputs(shape, lab.device, absent)
        said = "absent candidates, short rows, NaN elsewhere" if absent else "every candidate counts"
        for impl in impls:
            found = check(impl, given)
            rows.append(
                {
                    "impl": impl,
                    "rows": said,
                    "batch": shape.batch,
                    "heads": shape.heads,
                    "topk": shape.topk,
                    **{name: found[name] for name in ("rel_error", "lse_error")},
                    "tolerance": TOLERANCE,
                    "right": found["right"],
                }
            )
    return pd.DataFrame(rows)


def said(checked: pd.DataFrame) -> str:
    """The shape of `check_rungs` in words, for a caption."""
    row = checked.iloc[0]
    return f"{row['batch']} requests, {row['heads']} heads, {row['topk']} candidates"


def check_tiles(lab, tiles: Iterable[Tile], small: Shape = SMALL, full: Shape = FULL) -> pd.DataFrame:
    """The head-shared rung with several tiles on the same inputs: block_h, block_t, num_warps and the errors.

    On a GPU, a tile that does not fit or spills there is still run if it launches; its reason is kept if not.
    """
    shape = full if lab.on_gpu else small
    given = inputs(shape, lab.device, absent=True)
    rows = []
    for tile in tiles:
        named = {"block_h": tile.block_h, "block_t": tile.block_t, "num_warps": tile.num_warps}
        try:
            rows.append(named | check("mma", given, tile) | {"reason": None})
        except Exception as error:  # a tile too large for this GPU is a row, not an end
            rows.append(named | {"impl": "mma", "right": None, "reason": type(error).__name__})
    return pd.DataFrame(rows)
