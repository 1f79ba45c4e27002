"""Builds the points of the experiment `one_pass`: the candidate beside what `auto` does and FlashMLA."""

from __future__ import annotations

import torch

from kernels.lab import timing
from kernels.lab.candidates import launch, plan
from kernels.lab.experiments import sparse
from kernels.lab.experiments.point import Point
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.reference import sparse_mla_decode_reference
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
    if device != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        raise LookupError("the candidate multiplies by wgmma, which sm_90 has")
    if sets is None:
        sets = timing.sets_needed(sparse.bytes_per_call(point), timing.device_l2_bytes())
    given = sparse.inputs(point, device, sets, pool_tokens)
    size = planning.workspace_bytes(point.batch, point.heads, point.num_splits)
    workspace = torch.empty(size, dtype=torch.uint8, device=device)
    out = torch.empty_like(given.q)
    lse = torch.empty(sets, point.batch, point.heads, device=device)

    def one(index: int):
        chosen = {"num_splits": point.num_splits, "release": IMPLS[point.impl], "workspace": workspace}
        arguments = given.arguments(index) | chosen | {"out": out[index], "lse": lse[index]}
        return lambda: launch.decode(**arguments)

    calls = [one(index) for index in range(sets)]

    def check() -> tuple[float, str | None]:
        got_out, got_lse = calls[0]()
        count = min(point.batch, sparse.CHECKED_ROWS)
        rows = torch.linspace(0, point.batch - 1, count, device=device).round().long()
        arguments = given.arguments(0)
        for name in ("q", "indices", "topk_length", "extra_indices", "extra_topk_length"):
            if arguments.get(name) is not None:
                arguments[name] = arguments[name][rows]
        return sparse.errors(got_out[rows], got_lse[rows], *sparse_mla_decode_reference(**arguments))

    tile = {"block_h": 64, "block_t": plan.CHUNK_T, "num_warps": plan.WARPS, "num_stages": 1}
    return timing.Case(point.row() | tile, calls, check, sparse.TOLERANCE, sparse.bytes_per_call(point))
