"""The combine kernel may start before the kernel whose result it merges has ended: whenever it does, all is right.

Each call writes the scratch that the call before it still reads, so a kernel that did not wait would be seen.
"""

from dataclasses import replace

import pytest
import torch

from kernels.sparse_mla import layout, sparse_mla_decode
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.tiles import RELEASES
from tests.sparse_mla import cases

CALLS = 20
PLANS = ("native", "sm120", *cases.runnable_tiles())


def plan_of(name, batch, heads, width, release):
    """A plan of several splits whose combine kernel is released as told."""
    if name in cases.OTHER_KERNELS:
        chosen = cases.tile_plan(name, 5)
    else:
        device = planning.device_of(torch.empty(0, device="cuda"))
        chosen = planning.plan(
            batch, heads, width, device=device, impl="staged", tile_class=name, num_splits=5
        )
    return replace(chosen, release=release)


@pytest.mark.gpu
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("batch", [1, 8, 40])
def test_calls_that_follow_one_another_through_the_same_scratch(batch, name, release, tally):
    """Captured once, replayed three times: every call's bits are those of a call on its own, and right."""
    tally("calls through the same scratch, by release", CALLS)
    heads, width = 64, 330
    cache = cases.make_cache(64, 600, device="cuda")
    rows = [(cases.PATTERNS[row % 6], ("K", "tile+1", 0)[row % 3]) for row in range(batch)]
    side = cases.make_side(cache, rows, width, 64)
    several = [
        cases.Case(cases.make_query(batch, heads, seed=seed, device="cuda"), side) for seed in range(CALLS)
    ]
    plan = plan_of(name, batch, heads, width, release)
    size = planning.workspace_bytes(batch, heads, plan.scratch_splits)
    workspace = torch.full((size,), cases.NAN_BYTE, dtype=torch.uint8, device="cuda")
    results = [
        (
            torch.empty(batch, heads, layout.HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
            torch.empty(batch, heads, device="cuda"),
        )
        for _ in several
    ]
    alone = []
    for case in several:
        alone.append(sparse_mla_decode(**case.arguments, plan=plan))
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for case, (out, lse) in zip(several, results, strict=True):
            sparse_mla_decode(**case.arguments, plan=plan, out=out, lse=lse, workspace=workspace)
    for _ in range(3):
        for out, lse in results:
            out.fill_(torch.nan)
            lse.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        for (out, lse), (out_alone, lse_alone) in zip(results, alone, strict=True):
            assert torch.equal(out, out_alone) and torch.equal(lse, lse_alone)
    expected = several[-1].expected()
    assert cases.compare(*results[-1], expected, cases.rounded_factors("staged")) == []
