"""Builds the points of the experiment `redesign`: variants of the sm_120 tile, beside the rungs."""

from __future__ import annotations

from functools import partial

from kernels.lab import timing, variants
from kernels.lab.experiments import sparse
from kernels.lab.experiments.point import Point
from kernels.lab.variants.plan import Variant
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.tiles import Tile


def splits(variant: Variant, tile: Tile, point: Point, sm_count: int) -> int:
    """Programs that share a row: the rule of rung `split_k`, which gives every multiprocessor one block."""
    groups = -(-point.heads // tile.block_h) * variant.parts
    return planning.default_num_splits(point.batch, groups, -(-point.topk // tile.block_t), sm_count)


def errors(out, lse, want_out, want_lse, lse_tolerance: float) -> tuple[float, str | None]:
    """(relative RMS error of the output, what is wrong with the LSE or None)."""
    error = (out.double() - want_out).pow(2).mean().sqrt() / want_out.pow(2).mean().sqrt().clamp_min(1e-30)
    off = float(((lse.double() - want_lse).abs() / want_lse.abs().clamp_min(1.0)).max())
    right = off <= lse_tolerance  # NaN is not
    return float(error), None if right else f"LSE is off by {off:.2g}, accepted {lse_tolerance:.1g}"


def build(
    point: Point, device: str = "cuda", sets: int | None = None, pool_tokens: int | None = None
) -> timing.Case:
    """A case ready to be checked and timed; a point whose impl is a rung is built as everywhere else.

    sets, pool_tokens: as in `sparse.build`. The check's tolerance is that of the variant's accuracy class.
    """
    if point.impl not in variants.VARIANTS:
        return sparse.build(point, device, sets, pool_tokens)
    variant = variants.variant_of(point.impl)
    tile = Tile(*point.tile) if point.tile else variant.tile
    if sets is None:
        sets = timing.sets_needed(sparse.bytes_per_call(point), timing.device_l2_bytes())
    given = sparse.inputs(point, device, sets, pool_tokens)
    sm_count = planning.device_of(given.q).sm_count
    num_splits = point.num_splits or splits(variant, tile, point, sm_count)
    decode = partial(variants.decode, variant.name, tile=tile, num_splits=num_splits)
    calls = sparse.own_calls(decode, point, given, sets, num_splits)
    live = min(point.context or point.topk, point.topk)
    judge = partial(errors, lse_tolerance=variant.lse_tolerance(live))
    check = sparse.check_of(calls, point, given, judge)
    row = point.row() | {"num_splits": num_splits, "block_h": tile.block_h, "block_t": tile.block_t}
    row |= {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return timing.Case(row, calls, check, variant.tolerance, sparse.bytes_per_call(point))
