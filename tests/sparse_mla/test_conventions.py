"""Conventions that callers build on: the LSE, halves that merge, rows that do not know their batch."""

import math

import pytest
import torch

from kernels.sparse_mla import pack_cache, sparse_mla_decode
from tests.sparse_mla import cases


def ones_cache(device, tokens=4):
    return pack_cache(torch.ones(tokens, 512).bfloat16().to(device), 64)


@cases.on_every_device
def test_lse_is_the_natural_logarithm_without_the_sink(impl, device, tally):
    tally("LSE convention", 4)
    q = torch.zeros(4, 1, 512, dtype=torch.bfloat16, device=device)
    indices = torch.tensor(
        [[0, -1, -1], [0, 1, -1], [3, 3, 3], [-1, -1, -1]], dtype=torch.int32, device=device
    )
    sink = torch.full((1,), 2.0, device=device)
    for attn_sink in (None, sink):
        out, lse = sparse_mla_decode(q, ones_cache(device), indices, attn_sink=attn_sink, **cases.how(impl))
        expected = [0.0, math.log(2), math.log(3), math.inf]
        assert torch.allclose(lse[:, 0].double().cpu(), torch.tensor(expected).double(), atol=1e-6)
        extra = 0.0 if attn_sink is None else math.exp(2.0)
        for row, count in enumerate((1, 2, 3)):
            value = torch.tensor(count / (count + extra)).double()
            assert torch.allclose(out[row].double().cpu(), value, rtol=2**-7)
        assert not out[3].any()


@cases.on_every_device
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_query_that_nobody_wrote_reaches_no_empty_row(impl, value, device, tally):
    """A padding row of a captured batch: its query may hold anything, its indices are all absent."""
    tally("queries of NaN and infinity in empty rows", 2)
    q = torch.full((2, 2, 512), value, dtype=torch.bfloat16, device=device)
    indices = torch.full((2, 40), -1, dtype=torch.int32, device=device)
    lengths = torch.tensor([40, 3], dtype=torch.int32, device=device)
    for topk_length in (None, lengths):
        out, lse = sparse_mla_decode(q, ones_cache(device), indices, topk_length, **cases.how(impl))
        assert not out.any() and bool((lse == math.inf).all())


@cases.on_every_device
def test_queries_with_odd_strides(impl, device, tally):
    """Rows of a wider tensor, 520 and 600 numbers apart: a rung that cannot read them says so, auto takes another."""
    tally("strides of the queries", 2)
    cache = cases.make_cache(53, 20, device=device)
    case = cases.Case(
        cases.make_query(2, 2, device=device),
        cases.make_side(cache, [("dense", "K"), ("leading", "K")], 18, 16),
    )
    for width in (520, 600):
        wide = torch.full((2, 2, width), math.nan, dtype=torch.bfloat16, device=device)
        wide[..., :512] = case.q
        given = case.arguments | {"q": wide[..., :512]}
        if impl not in cases.INTERPRETABLE:
            with pytest.raises(ValueError, match="a row of q does not start at a multiple of 32 bytes"):
                sparse_mla_decode(**given, **cases.how(impl))
            impl_of_call = {"impl": "auto"}
        else:
            impl_of_call = cases.how(impl)
        out, lse = sparse_mla_decode(**given, **impl_of_call)
        assert cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == []


@cases.on_every_device
def test_halves_merged_by_their_lses_are_the_whole(impl, device, tally):
    tally("LSE convention", 2)
    cache = cases.make_cache(53, 40, device=device)
    side = cases.make_side(cache, [("dense", "K"), ("alternating", "K")], 30, 16)
    case = cases.Case(cases.make_query(2, 2, device=device), side)
    expected = case.expected()
    halves = []
    for part in (slice(0, 13), slice(13, 30)):
        given = case.arguments | {"indices": side.indices[:, part].contiguous(), "topk_length": None}
        halves.append([result.double() for result in sparse_mla_decode(**given, **cases.how(impl))])
    (out_a, lse_a), (out_b, lse_b) = halves
    lse = torch.logaddexp(lse_a, lse_b)
    out = out_a * torch.exp(lse_a - lse)[..., None] + out_b * torch.exp(lse_b - lse)[..., None]
    # Each half was rounded to bfloat16 on its own: one more rounded factor
    assert cases.compare(out, lse, expected, cases.rounded_factors(impl) + 1) == []


@cases.on_every_device
def test_two_caches_are_one_softmax(impl, device, tally):
    """The same tokens in one cache or shared out over two."""
    tally("two caches are one softmax")
    kv = torch.randn(24, 512, generator=torch.Generator().manual_seed(4)).bfloat16().to(device)
    q = cases.make_query(1, 2, device=device)
    sink = torch.tensor([0.5, -1.0], device=device)
    slots = torch.arange(24, dtype=torch.int32, device=device)[None]
    whole = sparse_mla_decode(q, pack_cache(kv, 53), slots, attn_sink=sink, **cases.how(impl))
    main, extra = pack_cache(kv[:15], 64), pack_cache(kv[15:], 2)
    halves = sparse_mla_decode(
        q, main, slots[:, :15].contiguous(), attn_sink=sink, extra_kv_cache=extra,
        extra_indices=slots[:, :9].contiguous(), **cases.how(impl),
    )  # fmt: skip
    assert torch.allclose(whole[1], halves[1], atol=1e-5)
    assert torch.allclose(whole[0].float(), halves[0].float(), rtol=2**-6, atol=2**-8)


def rows_of(case, rows):
    """The same call for some rows of a case."""
    return case.arguments | {
        "q": case.q[rows],
        "indices": case.main.indices[rows],
        "topk_length": case.main.length[rows],
        "extra_indices": case.extra.indices[rows],
        "extra_topk_length": case.extra.length[rows],
    }


def a_batch(batch, heads, width, device):
    rows = [(cases.PATTERNS[b % 6], ("K", 40, 1, 0, "K+5")[b % 5]) for b in range(batch)]
    main = cases.make_side(cases.make_cache(64, 200, device=device), rows, width, 16)
    extra = cases.make_side(cases.make_cache(2, 40, seed=1, device=device), rows[::-1], 7, 16, seed=1)
    return cases.Case(cases.make_query(batch, heads, device=device), main, extra)


@cases.on_every_device
def test_a_row_alone_and_in_a_batch_bit_for_bit(impl, device, tally):
    """`batch_invariant=True` promises it for every rung, and so does one plan for all batches."""
    batch, heads, width = (3, 1, 18) if device == "cpu" else (32, 64, 512)
    tally("batch invariance, bit for bit", batch)
    case = a_batch(batch, heads, width, device)
    chosen = cases.how(impl, batch_invariant=True)
    out, lse = sparse_mla_decode(**case.arguments, **chosen)
    assert cases.compare(out, lse, case.expected(), 2) == []
    for row in (0, batch - 1):
        alone = sparse_mla_decode(**rows_of(case, slice(row, row + 1)), **chosen)
        assert torch.equal(alone[0][0], out[row]) and torch.equal(alone[1][0], lse[row])


def test_without_the_promise_the_difference_is_rounding(device, tally):
    batch, heads, width = (2, 2, 70) if device == "cpu" else (32, 64, 2048)
    tally("batch invariance, bounded", batch)
    case = a_batch(batch, heads, width, device)
    out, lse = sparse_mla_decode(**case.arguments)
    row = cases.Case(case.q[:1], case.main, case.extra)
    row.main.rows, row.extra.rows = case.main.rows[:1], case.extra.rows[:1]
    alone = sparse_mla_decode(**rows_of(case, slice(0, 1)))
    expected = row.expected()
    assert cases.compare(*alone, expected, 2) == [] and cases.compare(out[:1], lse[:1], expected, 2) == []


@cases.on_every_device
def test_launches_repeat_bit_for_bit(impl, device, tally):
    batch, heads, width, repeats = (1, 1, 18, 1) if device == "cpu" else (32, 64, 512, 50)
    tally("launches repeat bit for bit", repeats)
    case = a_batch(batch, heads, width, device)
    first = sparse_mla_decode(**case.arguments, **cases.how(impl))
    for _ in range(repeats):
        assert all(map(torch.equal, sparse_mla_decode(**case.arguments, **cases.how(impl)), first))


@cases.on_every_device
@pytest.mark.parametrize("score", [300.0, -5000.0, 5000.0, 1e-6])
def test_large_and_tiny_scores(impl, score, device, tally):
    """Exponentials of such scores overflow or vanish: only differences to the maximum may be taken."""
    tally("large and tiny scores")
    cache = cases.make_cache(53, 20, device=device)
    side = cases.make_side(cache, [("dense", "K"), ("leading", "K")], 18, 16)
    case = cases.Case(
        cases.make_query(2, 2, device=device), side, sink=torch.tensor([score, 0.0], device=device)
    )
    case.q[..., 0] = 8.0
    reach = (case.q.double() @ cache.values.T * case.scale).abs().max()
    case.scale = case.scale * score / float(reach)
    out, lse, found = cases.decode_guarded(case, impl)
    assert found + cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == []
