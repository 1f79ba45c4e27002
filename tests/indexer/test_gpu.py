"""What the interpreter cannot show: graphs, 64-bit addresses, memory, huge batches, repeatability, time."""

import statistics

import pytest
import torch

from kernels.indexer import indexer_logits, indexer_topk, layout, topk_reference, topk_workspace
from tests.indexer.cases import NAN_BYTE, assert_logits, make_case

pytestmark = pytest.mark.gpu
TOLERANCE = 2e-3


def captured(step, warmup=1):
    """A CUDA graph of `step`, after a warm-up that compiles."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def microseconds(graph, repeats=30):
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def test_a_captured_step_follows_lengths_changed_in_place():
    """Captured at the widest shape, replayed shorter and longer; every row is compared, empty ones, too."""
    k = 64
    case = make_case([20000, 5000, 64, 1], width=400, past=-1, device="cuda")
    out = torch.full((4, case.max_seq_len), torch.nan, device="cuda")
    chosen = torch.full((4, k), -77, dtype=torch.int32, device="cuda")
    workspace = topk_workspace(4, k, "cuda")
    widest = case.seq_lens.clone()

    def step():
        indexer_logits(*case.inputs, impl="paged", out=out, fill_tail=False)
        indexer_topk(out, case.seq_lens, case.block_table, k, impl="radix", out=chosen, workspace=workspace)

    graph = captured(step)
    for lengths in ([20000, 5000, 64, 1], [1, 63, 64, 0], [0, 0, 0, 0], [12289, 4999, 2, -1], [9, 9, 9, 1]):
        case.seq_lens.copy_(torch.minimum(torch.tensor(lengths, dtype=torch.int32, device="cuda"), widest))
        out.fill_(torch.nan)
        workspace.fill_(2**31 - 1)
        chosen.fill_(-77)
        before = torch.cuda.memory_allocated()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before, "a replay allocates nothing"
        reference = case.reference()
        dead = ~reference.isfinite()
        assert bool(out[dead].isnan().all())
        assert_logits(out.masked_fill(dead, -torch.inf), reference, TOLERANCE)
        assert torch.equal(chosen, topk_reference(out, case.seq_lens, case.block_table, k))


def test_no_host_synchronisation():
    case = make_case([300, 2], device="cuda")
    indexer_topk(indexer_logits(*case.inputs), case.seq_lens, case.block_table, 64)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        indexer_topk(indexer_logits(*case.inputs), case.seq_lens, case.block_table, 64)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_capped_needs_its_cap_inside_a_capture():
    case = make_case([300, 2], device="cuda")
    out = torch.empty(2, case.max_seq_len, device="cuda")
    indexer_logits(*case.inputs, impl="capped", cap=128, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="^cap: got None inside a CUDA graph capture, accepted"):
            indexer_logits(*case.inputs, impl="capped", out=out)
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("page_stride", [8448, 4 * 8448])
def test_pages_past_two_to_the_31_bytes(page_stride):
    num_pages = 254_400
    cache = layout.allocate_index_cache(num_pages, page_stride=page_stride, device="cuda", fill=NAN_BYTE)
    case = make_case([130], device="cuda")
    pages = [254_300, num_pages - 1, 254_201]
    values, scales = layout.planes(cache)
    small_values, small_scales = layout.planes(case.cache)
    for column, page in enumerate(pages):
        source = int(case.block_table[0, column])
        values[page], scales[page] = small_values[source], small_scales[source]
    table = torch.tensor([pages], dtype=torch.int32, device="cuda")
    out = indexer_logits(case.q, cache, case.weights, case.seq_lens, table)
    assert_logits(out, case.reference(), TOLERANCE)


def test_logits_past_two_to_the_31_elements():
    case = make_case([100, 64, 777], device="cuda")
    width = 2**30
    out = torch.empty(3, width, device="cuda")
    indexer_logits(*case.inputs, out=out, fill_tail=False)
    reference = case.reference()
    columns = reference.shape[1]
    assert_logits(out[:, :columns].masked_fill(~reference.isfinite(), -torch.inf), reference, TOLERANCE)
    chosen = indexer_topk(out, case.seq_lens, case.block_table, 128)
    assert torch.equal(chosen, topk_reference(out[:, :columns], case.seq_lens, case.block_table, 128))
    del out
    filled = indexer_logits(*case.inputs, max_seq_len=width)
    assert bool((filled[2, 777:] == -torch.inf).all()) and bool((filled[0, 100:] == -torch.inf).all())


def test_batches_of_65536_rows():
    batch = 65_536
    small = make_case([0, 1, 64, 33], device="cuda")
    repeat = batch // 4
    arguments = [small.q.repeat(repeat, 1, 1), small.cache, small.weights.repeat(repeat, 1)]
    lens, table = small.seq_lens.repeat(repeat), small.block_table.repeat(repeat, 1)
    out = indexer_logits(*arguments, lens, table)
    assert torch.equal(out, indexer_logits(*small.inputs).repeat(repeat, 1))
    assert_logits(out[-4:], small.reference(), TOLERANCE)
    chosen = indexer_topk(out, lens, table, 8)
    expected = topk_reference(out[:4], small.seq_lens, small.block_table, 8)
    assert torch.equal(chosen, expected.repeat(repeat, 1))


def test_peak_memory_is_four_bytes_an_entry():
    """No [B, S, 64] intermediate: at this width that would be 64 times as much."""
    case = make_case([1000, 1000], width=4096, past=-1, device="cuda")
    indexer_logits(*case.inputs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = indexer_logits(*case.inputs)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * out.nbytes + 2**16


def test_fifty_launches_are_bit_equal():
    case = make_case([20000, 333, 4096], past=-1, device="cuda")
    first = indexer_logits(*case.inputs)
    chosen = indexer_topk(first, case.seq_lens, case.block_table)
    for _ in range(50):
        again = indexer_logits(*case.inputs)
        assert torch.equal(again, first)
        assert torch.equal(indexer_topk(again, case.seq_lens, case.block_table), chosen)


@pytest.mark.parametrize("lengths", [[300_000], [262_144, 1, 8192, 8193], [16_385] * 40])
@pytest.mark.parametrize("rounded", [False, True])
def test_topk_of_long_rows_at_the_device_tiles(lengths, rounded):
    generator = torch.Generator("cuda").manual_seed(5)
    logits = torch.randn(len(lengths), 300_032, device="cuda", generator=generator)
    logits = (logits * 4).round() if rounded else logits
    lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    table = torch.randperm(300_032 // 64, device="cuda", generator=generator).to(torch.int32)
    table = table.repeat(len(lengths), 1)
    assert torch.equal(indexer_topk(logits, lens, table), topk_reference(logits, lens, table))


def test_time_follows_the_live_length():
    """The same 2,048 live entries under a context 128 times as wide; 1.2 leaves room for noise."""
    times = []
    for width in (32, 4096):
        case = make_case([2048] * 8, width=width, past=-1, device="cuda")
        out = torch.empty(8, case.max_seq_len, device="cuda")
        chosen = torch.empty(8, 512, dtype=torch.int32, device="cuda")
        workspace = topk_workspace(8, 512, "cuda")

        def step(case=case, out=out, chosen=chosen, workspace=workspace):
            for _ in range(20):
                indexer_logits(*case.inputs, out=out, fill_tail=False)
                indexer_topk(out, case.seq_lens, case.block_table, out=chosen, workspace=workspace)

        times.append(microseconds(captured(step)))
    assert times[1] <= 1.2 * times[0], times
