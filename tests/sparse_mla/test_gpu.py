"""What the interpreter cannot show: graphs, 64-bit addresses, huge batches, live lengths.

The parts without a CUDA call of their own are tested on the CPU at a small size, too.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.sparse_mla import IMPLS, allocate_cache, layout, sparse_mla_decode, store_kv
from tests.sparse_mla import captured_graph, cases

ROOT = Path(__file__).parents[2]
gpu = pytest.mark.gpu
EVERY = (*IMPLS, *cases.runnable_tiles())


@pytest.mark.parametrize("lengths", captured_graph.FILLS)
def test_refilled_memory_is_what_the_kernel_reads(lengths):
    case, out, lse = captured_graph.prepare(3, 2, 20, 3, "cpu")
    addresses = [t.data_ptr() for t in (case.q, case.main.indices, case.main.length, case.extra.indices)]
    captured_graph.refill(case, lengths, 4)
    sparse_mla_decode(**case.arguments, impl="mma", out=out, lse=lse)
    assert captured_graph.findings(case, out, lse) == []
    assert not out[0].any() or case.extra.length[0] > 0
    assert addresses == [
        t.data_ptr() for t in (case.q, case.main.indices, case.main.length, case.extra.indices)
    ]
    out[0, 0, 0] = torch.nan
    assert len(captured_graph.findings(case, out, lse)) >= 2


@gpu
@pytest.mark.parametrize("impl", ["auto", *EVERY])
def test_a_captured_graph_in_a_fresh_process(impl, tally):
    command = [sys.executable, "-m", "tests.sparse_mla.captured_graph", impl]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    environment.pop("SPARSE_MLA_IMPL", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    replays, rows = map(int, done.stdout.split())
    tally("captured graphs: rows of replays", rows)
    assert replays == len(captured_graph.FILLS)


OPTIONS = ({}, {"batch_invariant": True}, {"scratch_dtype": torch.float32}, {"tile_class": "sm120"})


@gpu
def test_the_workspace_of_the_public_size_is_enough(tally):
    for batch, heads, width, extra in (
        (1, 64, 8192, 128),
        (16, 128, 512, 0),
        (32, 8, 64, 64),
        (7, 20, 130, 1),
    ):
        for impl in ("auto", *IMPLS):
            for options in (
                {},
                {"batch_invariant": True},
                {"scratch_dtype": torch.float32},
                {"tile_class": "sm120"},
            ):
                tally("workspace of the public size")
                rows = [("dense", "K")] * batch
                main = cases.make_side(cases.make_cache(64, 64, device="cuda"), rows, width, 64)
                side = (
                    cases.make_side(cases.make_cache(2, 64, device="cuda"), rows, extra, 64)
                    if extra
                    else None
                )
                case = cases.Case(cases.make_query(batch, heads, device="cuda"), main, side)
                out, lse, found = cases.decode_guarded(case, impl, **options)
                factors = cases.rounded_factors(impl, options.get("scratch_dtype", torch.bfloat16))
                assert found + cases.compare(out, lse, case.expected(), factors) == []


def far_pages(page_size, page_stride, num_pages, far, device):
    """A cache of poison whose live slots lie in the pages `far`; made without a second copy."""
    cache = allocate_cache(num_pages, page_size, page_stride=page_stride, device=device, fill=cases.NAN_BYTE)
    slots = torch.tensor([page * page_size + page % page_size for page in far], device=device)
    generator = torch.Generator().manual_seed(page_size)
    kv = torch.randn(len(far), layout.HEAD_DIM, generator=generator).bfloat16().to(device)
    store_kv(cache, slots, kv)
    zero = torch.zeros(1, layout.HEAD_DIM, dtype=torch.float64, device=device)
    return cases.Cache(cache, slots, torch.cat([layout.load_kv(cache, slots), zero]))


def far_case(small, device):
    """Both caches reach past 2**31 bytes, by many pages and by a wide stride; or a small copy of that."""
    if small:
        main = far_pages(64, 37_440, 6, [5, 3, 1], device)
        extra = far_pages(2, 4 * 1728, 9, [8, 4, 2], device)
    else:
        pages = 2**31 // 37_440 + 40
        main = far_pages(
            64, 37_440, pages, [pages - 1, pages - 30, pages - 41, 2**30 // 37_440 + 1, 1], device
        )
        pages = 2**31 // 149_760 + 40
        extra = far_pages(2, 149_760, pages, [pages - 1, pages - 20, pages - 41, 3], device)
    rows = [("dense", "K"), ("alternating", "K"), ("dense", "tile+1")]
    sides = [cases.make_side(cache, rows, 70, 16) for cache in (main, extra)]
    return cases.Case(cases.make_query(3, 8, device=device), *sides)


def test_far_pages_at_a_small_size():
    case = far_case(True, "cpu")
    out, lse = sparse_mla_decode(**case.arguments, impl="mma", validate=True)
    assert cases.compare(out, lse, case.expected(), 1) == []


@gpu
def test_page_offsets_past_two_to_the_31_bytes(tally):
    case = far_case(False, "cuda")
    for cache in (case.main.cache, case.extra.cache):
        page_size, stride = cache.tensor.shape[1], cache.tensor.stride(0)
        assert int(cache.slots.max()) // page_size * stride > 2**31
    for impl in EVERY:
        tally("page offsets past 2**31 bytes", 3)
        out, lse = sparse_mla_decode(**case.arguments, **cases.how(impl))
        assert cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == [], impl


def wide_batch(batch, heads, device, distinct=16):
    """A few distinct rows, over and over: rows past any 16-bit grid limit must equal the first ones."""
    rows = [(cases.PATTERNS[row % 6], ("K", 5, 1, 0)[row % 4]) for row in range(distinct)]
    side = cases.make_side(cases.make_cache(64, 40, device=device), rows, 20, 16)
    small = cases.Case(cases.make_query(distinct, heads, device=device), side)
    given = small.arguments
    repeat = batch // distinct
    given |= {
        "q": small.q.repeat(repeat, 1, 1),
        "indices": side.indices.repeat(repeat, 1),
        "topk_length": side.length.repeat(repeat),
    }
    return small, given


def test_a_wide_batch_at_a_small_size():
    small, given = wide_batch(6, 1, "cpu", 3)
    out, lse = sparse_mla_decode(**given, impl="mma")
    assert cases.compare(out[3:], lse[3:], small.expected(), 1) == []


@gpu
@pytest.mark.parametrize("impl", ["auto", *EVERY])
def test_batches_of_65536_rows(impl, tally):
    batch = 65_536 + 16
    tally("batches of 65,536 rows", batch)
    small, given = wide_batch(batch, 16, "cuda")
    out, lse = sparse_mla_decode(**given, **cases.how(impl))
    assert cases.compare(out[-16:], lse[-16:], small.expected(), cases.rounded_factors(impl)) == []
    assert torch.equal(out.view(-1, 16, 16, 512), out[:16].expand(batch // 16, 16, 16, 512))
    assert torch.equal(lse.view(-1, 16, 16), lse[:16].expand(batch // 16, 16, 16))


@gpu
@pytest.mark.parametrize("impl", EVERY)
def test_partial_results_past_two_to_the_31_bytes(impl, tally):
    """out and scratch of more than 2**31 bytes: 64-bit offsets in every store."""
    batch, heads = 16_400, 128
    tally("results past 2**31 bytes", batch)
    small, given = wide_batch(batch, heads, "cuda")
    splits = {"num_splits": 2} if impl == "split_k" else {}
    out, lse = sparse_mla_decode(**given, **cases.how(impl, **splits))
    assert out.nbytes > 2**31
    assert cases.compare(out[-16:], lse[-16:], small.expected(), cases.rounded_factors(impl)) == []


@gpu
@pytest.mark.parametrize("impl", ["auto", *EVERY])
def test_no_allocation_and_no_synchronisation(impl):
    case, out, lse = captured_graph.prepare(4, 64, 512, 64, "cuda")
    workspace = torch.empty(cases.needed_workspace(case, impl), dtype=torch.uint8, device="cuda")
    given = case.arguments | {"out": out, "lse": lse, "workspace": workspace} | cases.how(impl)
    sparse_mla_decode(**given)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        sparse_mla_decode(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def microseconds(step, repeats=30):
    """Median of a captured step of 20 calls."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            step()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / 20)
    return statistics.median(times)


@gpu
@pytest.mark.parametrize("impl", [impl for impl in EVERY if impl not in ("serial", "simt", "staged-wide")])
def test_time_follows_the_live_length(impl, tally):
    """64 live candidates under an index width of 8,192 cost what they cost under one of 64, within 1.2.

    Not of a wide tile that a plan insists on: the planner takes none for such a row (test_plan.py).

    The plan may look at the width, so both get the splits of the wider one.
    """
    tally("live length, not capacity", 2)
    splits = {"num_splits": 4} if impl != "mma" else {}
    times = []
    for width in (64, 8192):
        cache = cases.make_cache(64, 2000, device="cuda")
        side = cases.make_side(cache, [("dense", 64)] * 16, width, 64)
        case = cases.Case(cases.make_query(16, 64, device="cuda"), side)
        out, lse = sparse_mla_decode(**case.arguments, **cases.how(impl, **splits))
        assert cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == []
        scratch = torch.empty(cases.needed_workspace(case, impl, **splits), dtype=torch.uint8, device="cuda")
        given = case.arguments | cases.how(impl, **splits) | {"out": out, "lse": lse, "workspace": scratch}
        times.append(microseconds(lambda given=given: sparse_mla_decode(**given)))
    assert times[1] <= 1.2 * times[0], times
