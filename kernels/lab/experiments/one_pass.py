"""Builds the points of the experiment `one_pass`: the candidate beside what `auto` does and FlashMLA."""

from __future__ import annotations

from functools import partial

import torch

from kernels.lab import timing
from kernels.lab.candidates import launch
from kernels.lab.candidates.plan import TILE
from kernels.lab.experiments import sparse
from kernels.lab.experiments.point import Point
from kernels.sparse_mla.tiles import RELEASES

NAME = "one_pass"
IMPLS = {f"{NAME}_{release}": release for release in RELEASES}
"""Names in a record, by the moment at which the combine kernel may start."""


def build(
    point: Point, device: str = "cuda", sets: int | None = None, pool_tokens: int | None = None
) -> timing.Case:
    """A case ready to be checked and timed; a point of another impl is built as everywhere else.

    sets, pool_tokens: as in `sparse.build`. Raises LookupError where the device has no wgmma.
    """
    if point.impl not in IMPLS:
        return sparse.build(point, device, sets, pool_tokens)
    if reason := launch.why_not(torch.device(device)):
        raise LookupError(reason)
    if sets is None:
        sets = timing.sets_needed(sparse.bytes_per_call(point), timing.device_l2_bytes())
    given = sparse.inputs(point, device, sets, pool_tokens)
    decode = partial(launch.decode, num_splits=point.num_splits, release=IMPLS[point.impl])
    calls = sparse.own_calls(decode, point, given, sets, point.num_splits)
    tile = {name: getattr(TILE, name) for name in ("block_h", "block_t", "num_warps", "num_stages")}
    check = sparse.check_of(calls, point, given)
    return timing.Case(point.row() | tile, calls, check, sparse.TOLERANCE, sparse.bytes_per_call(point))
