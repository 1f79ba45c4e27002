"""Captures a decode in a fresh process, changes everything in place, replays, compares every row.

`python -m tests.sparse_mla.captured_graph IMPL` prints how many replays and rows were right, or fails. A
warm-up of the captured shape comes first, as in an engine: it compiles and loads the kernels. What lies in
the capture allocates nothing, waits for nothing and tunes nothing. `prepare` and `refill` hold no CUDA call
of their own, so that their logic is tested without a GPU.
"""

import sys

import torch

from kernels.sparse_mla import layout, sparse_mla_decode
from tests.sparse_mla import cases

FILLS = (("K", "tile+1"), (0, 0), (1, "K"), (-3, "K+5"), ("tile-1", 0), (0, 1), ("K+5", "tile"))


def prepare(batch, heads, width, extra_width, device):
    """A case at its widest, and result and scratch tensors of the public size."""
    rows = [("dense", "K")] * batch
    main = cases.make_side(cases.make_cache(64, 300, device=device), rows, width, 64)
    extra = cases.make_side(cases.make_cache(2, 200, seed=1, device=device), rows, extra_width, 64, seed=1)
    q = cases.make_query(batch, heads, device=device)
    case = cases.Case(q, main, extra, torch.zeros(heads, device=device))
    out = torch.empty(batch, heads, layout.HEAD_DIM, dtype=torch.bfloat16, device=device)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=device)
    return case, out, lse


def refill(case, lengths, seed):
    """New queries, sinks, indices, lengths in the same memory; a third of the rows is padding."""
    batch, heads, _ = case.q.shape
    kinds = [(cases.PATTERNS[(row + seed) % 6], lengths[row % 2] if row % 3 else 0) for row in range(batch)]
    for side, rows in ((case.main, kinds), (case.extra, kinds[::-1])):
        fresh = cases.make_side(side.cache, rows, side.indices.shape[1], 64, seed=seed)
        side.indices.copy_(fresh.indices)
        side.length.copy_(fresh.length)
        side.rows.copy_(fresh.rows)
    case.q.copy_(cases.make_query(batch, heads, seed=seed, device=case.q.device))
    case.sink.fill_(float(seed % 3) - 1)


def findings(case, out, lse) -> list[str]:
    """Every row against the oracle; an empty row must be zeros, a padded one finite."""
    found = cases.compare(out, lse, case.expected(), 2)
    return found if bool(out.isfinite().all()) else [*found, "out holds values that are not finite"]


def main(impl: str, batch: int = 24, heads: int = 64, width: int = 512, extra_width: int = 192) -> None:
    case, out, lse = prepare(batch, heads, width, extra_width, "cuda")
    size = cases.needed_workspace(case, impl)
    workspace = torch.full((size,), cases.NAN_BYTE, dtype=torch.uint8, device="cuda")

    def step():
        sparse_mla_decode(**case.arguments, **cases.how(impl), out=out, lse=lse, workspace=workspace)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    step()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before, (
        "a call with its own buffers allocated"
    )
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch.cuda.memory_stats()["allocation.all.allocated"]
        step()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == inside, "the capture allocated"

    for seed, lengths in enumerate(FILLS):
        refill(case, lengths, seed)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        workspace.fill_(cases.NAN_BYTE if seed % 2 else cases.HUGE_BYTE)
        graph.replay()
        found = findings(case, out, lse)
        assert not found, f"replay {seed}, lengths {lengths}: {found}"
    print(len(FILLS), batch * len(FILLS))


if __name__ == "__main__":
    main(sys.argv[1])
