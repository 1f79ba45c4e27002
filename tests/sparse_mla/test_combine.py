"""The merge of partial results: empty splits, 64 of them, unwritten partials, sinks, shares of a row."""

import pytest
import torch

from kernels.sparse_mla import Tile, launch, sparse_mla_decode
from kernels.sparse_mla.combine import combine_kernel
from kernels.sparse_mla.layout import HEAD_DIM
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.validate import Inputs
from tests.sparse_mla import cases

LOG2_E = 1.4426950408889634


def merge(partial_out, partial_lse, sink=None, splits=None):
    """Run the combine kernel over partials `[B, S, H, 512]` and base-2 LSEs `[B, S, H]`."""
    batch, stored, heads, _ = partial_out.shape
    device = partial_out.device
    out, raw = cases.guarded((batch, heads, HEAD_DIM), torch.bfloat16, device)
    lse, raw_lse = cases.guarded((batch, heads), torch.float32, device)
    q = torch.empty(batch, heads, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    inputs = Inputs(q, None, None, sink, 1.0)
    arguments = launch.combine_arguments(inputs, partial_out, partial_lse, out, lse, splits or stored, False)
    combine_kernel[(batch, heads)](**arguments, num_warps=launch.COMBINE_WARPS, num_stages=1)
    assert not cases.trespassed(raw) and not cases.trespassed(raw_lse)
    return out, lse


def expected_merge(partial_out, partial_lse, sink=None):
    """float64 merge over the splits that have candidates."""
    lse = partial_lse.double() / LOG2_E
    total = torch.logsumexp(lse, 1)
    empty = total == -torch.inf
    weight = torch.exp(lse - total[:, None].masked_fill(empty[:, None], 0.0))
    out = (weight[..., None] * partial_out.double().nan_to_num(0.0)).sum(1)
    if sink is not None:
        out *= torch.sigmoid(total - sink.double()).nan_to_num(0.0)[..., None]
    return out, total.masked_fill(empty, torch.inf)


MERGES = [
    *(
        (splits, dtype, "cpu")
        for splits, dtype in ((2, torch.float32), (7, torch.bfloat16), (64, torch.bfloat16))
    ),
    *(
        pytest.param(splits, dtype, "cuda", marks=pytest.mark.gpu)
        for splits in (1, 2, 3, 7, 8, 9, 16, 63, 64)
        for dtype in (torch.bfloat16, torch.float32)
    ),
]


@pytest.mark.parametrize("splits,dtype,device", MERGES)
@pytest.mark.parametrize("sink", [None, "-inf", -5.0, 0.0, 5.0, 1e4, "inf"])
def test_merge(splits, dtype, sink, device, tally):
    """Rows: all splits live, every other one, the first, the last, none. The empty ones are poison."""
    if device == "cpu" and (splits, dtype) not in (
        (2, torch.float32),
        (7, torch.bfloat16),
        (64, torch.bfloat16),
    ):
        pytest.skip("this combination runs on a GPU")
    tally("combine: empty splits, sinks", 5)
    generator = torch.Generator().manual_seed(splits)
    partial_out = torch.randn(5, splits, 1, HEAD_DIM, generator=generator).to(dtype)
    partial_lse = torch.randn(5, splits, 1, generator=generator) * 9
    live = torch.zeros(5, splits, dtype=torch.bool)
    live[0] = live[1, ::2] = live[2, 0] = live[3, -1] = True
    partial_out[~live], partial_lse[~live] = torch.nan, -torch.inf
    attn_sink = None if sink is None else torch.tensor([float(sink)]).to(device)
    partial_out, partial_lse = partial_out.to(device), partial_lse.to(device)
    out, lse = merge(partial_out, partial_lse, attn_sink)
    expected, expected_lse = expected_merge(partial_out, partial_lse, attn_sink)
    magnitude = expected_merge(partial_out.abs(), partial_lse, attn_sink)[0]
    # One rounding to bfloat16, and float32 exponentials of differences of up to about 60
    bound = expected.abs() * 2**-8 + magnitude * 2**-16 + 2**-126
    assert bool(((out.double() - expected).abs() <= bound).all())
    assert torch.allclose(lse.double(), expected_lse, rtol=2**-20, atol=2**-18)
    assert not out[4].any()


def test_partials_of_a_larger_grid_are_not_read(device):
    """A buffer as 16 splits left it, of which this call wrote the first three."""
    partial_out = torch.full((1, 16, 2, HEAD_DIM), 3.0, device=device)
    partial_lse = torch.full((1, 16, 2), 50.0, device=device)
    partial_out[:, :3], partial_lse[:, :3] = torch.randn(1, 3, 2, HEAD_DIM), torch.randn(1, 3, 2)
    out, _ = merge(partial_out, partial_lse, splits=3)
    expected, _ = expected_merge(partial_out[:, :3], partial_lse[:, :3])
    assert torch.allclose(out.double(), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("splits", [1, 3, 4, 5, 7])
def test_every_candidate_exactly_once(splits, device, tally):
    """One-hot values: column t of the result is candidate t's weight; a missing or doubled one shows."""
    tally("split ranges: one-hot values", 130)
    topk, tile = 130, Tile(16, 32, 4)
    rows = torch.zeros(topk, HEAD_DIM)
    rows[torch.arange(topk), torch.arange(topk)] = 448.0
    rows[:, 448:] = 0.0
    cache = cases.make_cache(64, topk, device=device)
    cases.layout.store_kv(cache.tensor, cache.slots, rows.bfloat16().to(device))
    q = torch.zeros(1, 2, HEAD_DIM, dtype=torch.bfloat16, device=device)
    indices = cache.slots.to(torch.int32)[None]
    scratch = torch.full((2 * splits * 1028,), cases.NAN_BYTE, dtype=torch.uint8, device=device)
    plan = Plan("split_k", tile, splits)
    out, lse = sparse_mla_decode(q, cache.tensor, indices, plan=plan, workspace=scratch)
    # All scores are 0: every weight is 1 / 130, rounded once as a partial and once as a result
    expected = torch.zeros(HEAD_DIM, dtype=torch.float64)
    expected[:topk] = 448 / topk
    assert torch.allclose(out.double().cpu(), expected.expand(1, 2, -1), rtol=2**-7, atol=0)
    assert torch.allclose(lse.double().cpu(), torch.tensor(float(topk)).double().log(), atol=1e-6)


SPLIT_LENGTHS = (0, 1, 15, 16, 17, 65)


@pytest.mark.parametrize("splits", [1, 2, 7, 16, 64])
def test_splits_agree_on_every_length(splits, device, tally):
    """Fewer tiles than splits is ordinary traffic: a C128 cache of one entry, and that one absent."""
    lengths = SPLIT_LENGTHS
    if device == "cpu" and splits == 64:
        pytest.skip("64 programs a row: on a GPU; interpreted, the merge of 64 is tested alone")
    if device == "cpu":
        lengths = {1: SPLIT_LENGTHS, 2: (0, 1, 17, 65), 7: (1, 65)}.get(splits, (17,))
    tally("lengths x splits x caches", len(lengths))
    rows = [("dense", length) for length in lengths]
    cache = cases.make_cache(53, 40, device=device)
    main = cases.make_side(cache, rows, 65, 32)
    extra = cases.make_side(cases.make_cache(2, 9, seed=2, device=device), [("none", 1)] * len(rows), 1, 32)
    case = cases.Case(cases.make_query(len(rows), 1, device=device), main, extra)
    out, lse, found = cases.decode_guarded(case, "split_k", num_splits=splits)
    assert found + cases.compare(out, lse, case.expected(), 2) == []
