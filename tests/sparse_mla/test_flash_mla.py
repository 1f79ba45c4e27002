"""FlashMLA's signature: engines' calls give the operator's results, and what is not served is named."""

import inspect

import pytest
import torch

from kernels.sparse_mla import ArgumentError
from kernels.sparse_mla.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata
from tests.sparse_mla import cases


def a_case(batch=2, queries=1, heads=4, two=True, device="cpu"):
    """A case of one row a query; the queries of a request have its lengths."""
    lengths = ["K", 9, 0, "K+5"][:batch]
    rows = [(cases.PATTERNS[(b + s) % 6], lengths[b]) for b in range(batch) for s in range(queries)]
    main = cases.make_side(cases.make_cache(53, 40, device=device), rows, 17, 16)
    extra = (
        cases.make_side(cases.make_cache(2, 25, seed=1, device=device), rows, 5, 16, seed=1) if two else None
    )
    sink = torch.linspace(-1, 2, heads).to(device)
    return cases.Case(cases.make_query(batch * queries, heads, device=device), main, extra, sink)


def as_flash_mla(case, batch, queries):
    """The same call under FlashMLA's names."""
    arguments = {
        "q": case.q.view(batch, queries, *case.q.shape[1:]),
        "k_cache": case.main.cache.tensor,
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": get_mla_metadata()[0],
        "softmax_scale": case.scale,
        "is_fp8_kvcache": True,
        "indices": case.main.indices.view(batch, queries, -1),
        "topk_length": case.main.length.view(batch, queries)[:, 0],
        "attn_sink": case.sink,
    }
    if case.extra is not None:
        arguments |= {
            "extra_k_cache": case.extra.cache.tensor,
            "extra_indices_in_kvcache": case.extra.indices.view(batch, queries, -1),
            "extra_topk_length": case.extra.length.view(batch, queries)[:, 0],
        }
    return arguments


@pytest.mark.parametrize("batch,queries", [(3, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("two", [False, True])
def test_it_is_the_operator(batch, queries, two, device, tally):
    tally("FlashMLA's signature", batch * queries)
    case = a_case(batch, queries, two=two, device=device)
    out, lse = flash_mla_with_kvcache(**as_flash_mla(case, batch, queries))
    assert out.shape == (batch, queries, 4, 512) and out.dtype == torch.bfloat16
    assert lse.shape == (batch, 4, queries) and lse.dtype == torch.float32
    rows = lse.transpose(1, 2).reshape(-1, 4)
    assert cases.compare(out.flatten(0, 1), rows, case.expected(), cases.rounded_factors("split_k")) == []


@pytest.mark.parametrize("queries", [1, 2])
def test_out_is_written_in_place(queries, device):
    case = a_case(2, queries, device=device)
    raw = torch.full((2, queries, 9, 512), torch.nan, dtype=torch.bfloat16, device=device)
    out, _ = flash_mla_with_kvcache(**as_flash_mla(case, 2, queries), out=raw[:, :, 2:6])
    assert out.data_ptr() == raw[:, :, 2:6].data_ptr()
    assert bool(raw[:, :, :2].isnan().all()) and bool(raw[:, :, 6:].isnan().all())
    factors = cases.rounded_factors("split_k")
    expected = case.expected()
    assert cases.compare(out.flatten(0, 1), expected.lse, expected, factors) == []


def test_positional_arguments_are_in_flash_mla_order():
    case = a_case(2, 1)
    given = as_flash_mla(case, 2, 1)
    names = list(inspect.signature(flash_mla_with_kvcache).parameters)[:16]
    positional = [given.get(name) for name in names]
    positional[names.index("causal")] = False
    out, lse = flash_mla_with_kvcache(*positional)
    again, lse_again = flash_mla_with_kvcache(**given)
    assert torch.equal(out, again) and torch.equal(lse, lse_again)
    assert names == [
        "q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata", "num_splits",
        "softmax_scale", "causal", "is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache",
        "extra_indices_in_kvcache", "topk_length", "extra_topk_length",
    ]  # fmt: skip


def test_the_scale_defaults_and_dense_tables_are_not_read():
    case = a_case(2, 1)
    given = as_flash_mla(case, 2, 1)
    out, _ = flash_mla_with_kvcache(**given)
    given |= {"softmax_scale": None, "cache_seqlens": torch.tensor([1, 1]), "block_table": torch.zeros(2, 0)}
    assert torch.equal(flash_mla_with_kvcache(**given)[0], out)


def test_metadata():
    metadata, splits = get_mla_metadata(torch.zeros(1), 64, num_heads_k=1)
    assert isinstance(metadata, FlashMLASchedMeta) and splits is None
    assert metadata.tile_scheduler_metadata is None and metadata.num_splits is None


@pytest.mark.parametrize(
    "name,value",
    [
        ("q", lambda a: a["q"][:, 0]),
        ("q", None),
        ("q", lambda a: a["q"].float()),
        ("head_dim_v", 128),
        ("tile_scheduler_metadata", torch.zeros(1)),
        ("num_splits", 4),
        ("causal", True),
        ("is_fp8_kvcache", False),
        ("indices", None),
        ("indices", lambda a: a["indices"][:, 0]),
        ("indices", lambda a: a["indices"][:1]),
        ("indices", [[1]]),
        ("k_cache", lambda a: a["k_cache"].float()),
        ("extra_k_cache", None),
        ("extra_indices_in_kvcache", None),
        ("extra_indices_in_kvcache", lambda a: a["extra_indices_in_kvcache"].long()),
        ("topk_length", lambda a: a["topk_length"].long()),
        ("topk_length", lambda a: a["topk_length"][:1]),
        ("topk_length", [1, 2]),
        ("extra_topk_length", lambda a: a["extra_topk_length"][:1]),
        ("attn_sink", lambda a: a["attn_sink"][:3]),
        ("softmax_scale", "big"),
        ("out", torch.zeros(2, 2, 4, 512)),
        ("out", torch.zeros(3, 2, 4, 512, dtype=torch.bfloat16)),
        ("out", torch.zeros(2, 4, 4, 512, dtype=torch.bfloat16)[:, :2]),
    ],
)
def test_what_sparse_decode_does_not_take_is_named(name, value, tally):
    tally("errors")
    arguments = as_flash_mla(a_case(2, 2), 2, 2) | {
        "out": torch.full((2, 2, 4, 512), 7.0, dtype=torch.bfloat16)
    }
    before = arguments["out"]
    arguments[name] = value(arguments) if callable(value) else value
    with pytest.raises(ArgumentError, match=f"^{name}: got .*, accepted is ") as caught:
        flash_mla_with_kvcache(**arguments)
    assert caught.value.__cause__ is None
    assert bool((before == 7.0).all())
