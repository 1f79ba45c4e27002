"""The definition against a dense computation that shares no code with it, and against sums by hand."""

import math

import pytest
import torch

from kernels.sparse_mla import pack_cache, sparse_mla_decode_reference, store_kv
from kernels.sparse_mla.reference import valid_slots
from tests.sparse_mla import cases


@pytest.mark.parametrize("sink", [None, -math.inf, 0.0, 5.0, math.inf])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("has_length", [False, True])
def test_reference_is_dense_attention(sink, two, has_length, tally):
    rows = [(p, n if has_length else None) for p in cases.PATTERNS for n in (0, 1, 17, "K", -3, "K+5")]
    tally("reference against dense attention", len(rows))
    main = cases.make_side(cases.make_cache(53, 40, offset=3), rows, 33, 16)
    extra = cases.make_side(cases.make_cache(2, 25, seed=1), rows[::-1], 20, 16, seed=1) if two else None
    attn_sink = None if sink is None else torch.tensor([sink, 0.25, -math.inf])
    case = cases.Case(cases.make_query(len(rows), 3, view="slices"), main, extra, attn_sink, scale=0.07)
    out, lse = sparse_mla_decode_reference(**case.arguments)
    expected = case.expected()
    assert out.dtype == lse.dtype == torch.float64
    assert torch.allclose(out, expected.out, rtol=1e-12, atol=1e-13)
    assert torch.allclose(lse, expected.lse, rtol=1e-12, atol=1e-12)


def test_one_row_written_out():
    kv = torch.tensor([1.0, 2.0, -3.0])[:, None].expand(3, 512).bfloat16()
    cache = pack_cache(kv, 2)
    q = torch.full((1, 1, 512), 0.5).bfloat16()
    indices = torch.tensor([[2, -1, 0]], dtype=torch.int32)
    out, lse = sparse_mla_decode_reference(
        q, cache, indices, softmax_scale=0.01, attn_sink=torch.tensor([1.0])
    )
    weights = [math.exp(256 * 0.01 * x) for x in (-3.0, 1.0)]
    assert math.isclose(float(lse), math.log(sum(weights)))
    value = (weights[0] * -3 + weights[1] * 1) / (sum(weights) + math.e)
    assert torch.allclose(out, torch.tensor(value, dtype=torch.float64))


def test_empty_rows():
    cache = pack_cache(torch.ones(4, 512).bfloat16(), 4)
    q = torch.ones(2, 3, 512).bfloat16()
    out, lse = sparse_mla_decode_reference(
        q, cache, torch.full((2, 5), -1, dtype=torch.int32), attn_sink=torch.ones(3)
    )
    assert not out.any() and bool((lse == math.inf).all())


@pytest.mark.parametrize("length,kept", [(None, [4, 9]), (0, []), (-2, []), (1, []), (2, [4]), (99, [4, 9])])
def test_valid_slots(length, kept):
    assert valid_slots(torch.tensor([-1, 4, -7, 9]), length).tolist() == kept


def test_a_rewritten_slot_is_read_anew():
    kv = torch.randn(4, 512).bfloat16()
    cache = pack_cache(kv, 4)
    q, indices = torch.randn(1, 1, 512).bfloat16(), torch.tensor([[2]], dtype=torch.int32)
    store_kv(cache, torch.tensor([2]), torch.ones(1, 512).bfloat16())
    assert torch.equal(sparse_mla_decode_reference(q, cache, indices)[0], torch.ones(1, 1, 512).double())
