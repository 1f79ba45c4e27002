"""The front door: who serves a call, what may be passed in, and that results land where the caller said."""

from types import SimpleNamespace

import pytest
import torch

import kernels.sparse_mla.launch as launch
from kernels.sparse_mla import Plan, Tile, api, pack_cache, sparse_mla_decode, workspace_bytes
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.tiles import FEW_HEADS_TILES
from tests.sparse_mla import cases

every_impl = pytest.mark.parametrize("impl", cases.interpretable_impls())


def a_case(rows=(("dense", "K"), ("last", 9)), width=11, heads=2, device="cpu", **options):
    cache = cases.make_cache(53, 40, device=device, **options)
    side = cases.make_side(cache, rows, width, 16)
    return cases.Case(cases.make_query(len(rows), heads, device=device), side)


@pytest.fixture
def launched(monkeypatch):
    """The plans that reached the launcher."""
    plans = []
    run = launch.run
    monkeypatch.setattr(
        launch, "run", lambda inputs, plan, *rest: (plans.append(plan), run(inputs, plan, *rest))[1]
    )
    return plans


@every_impl
def test_a_named_rung_serves_the_call(impl, launched, monkeypatch):
    monkeypatch.setenv("SPARSE_MLA_IMPL", "simt")
    sparse_mla_decode(**a_case().arguments, impl=impl)
    assert [plan.impl for plan in launched] == [impl]


@every_impl
def test_the_environment_chooses_where_the_caller_does_not(impl, launched, monkeypatch):
    monkeypatch.setenv("SPARSE_MLA_IMPL", impl)
    case = a_case()
    scratch = torch.empty(workspace_bytes(2, 2, 11), dtype=torch.uint8)
    sparse_mla_decode(**case.arguments, workspace=scratch)
    assert [plan.impl for plan in launched] == [impl]


def test_auto_follows_the_plan(launched):
    case = a_case()
    sparse_mla_decode(**case.arguments)
    assert launched == [planning.plan(2, 2, 11, can_stage=False)]
    sparse_mla_decode(**case.arguments, num_splits=3)
    assert (launched[-1].impl, launched[-1].num_splits) == ("split_k", 3)
    sparse_mla_decode(**case.arguments, tile_class="sm120", batch_invariant=True)
    assert launched[-1] == planning.batch_invariant_plan(2, 11, can_stage=False)


@every_impl
def test_results_and_scratch_are_the_callers(impl):
    """Strided windows of larger tensors: the neighbours stay as they were."""
    case = a_case()
    wide = torch.full((2, 5, 520), torch.nan, dtype=torch.bfloat16)
    lse_wide = torch.full((2, 7), torch.nan)
    out, lse = sparse_mla_decode(**case.arguments, impl=impl, out=wide[:, 1:3, :512], lse=lse_wide[:, 2:4])
    assert out.data_ptr() == wide[:, 1:3].data_ptr() and lse.data_ptr() == lse_wide[:, 2:4].data_ptr()
    assert cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == []
    assert int(wide.isnan().sum()) == wide.numel() - out.numel()
    assert int(lse_wide.isnan().sum()) == lse_wide.numel() - lse.numel()


@every_impl
def test_four_dimensional_queries(impl):
    case = a_case()
    given = case.arguments
    given |= {"q": case.q[:, None], "indices": case.main.indices[:, None]}
    out, lse = sparse_mla_decode(**given, impl=impl)
    assert out.shape == (2, 1, 2, 512) and lse.shape == (2, 2)
    flat, flat_lse = sparse_mla_decode(**case.arguments, impl=impl)
    assert torch.equal(out[:, 0], flat) and torch.equal(lse, flat_lse)
    buffer = torch.zeros_like(out)
    assert sparse_mla_decode(**given, impl=impl, out=buffer)[0] is buffer
    assert torch.equal(buffer, out)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_caches_of_other_byte_types_and_three_dimensions(dtype):
    case = a_case()
    expected, _ = sparse_mla_decode(**case.arguments, impl="mma")
    for cache in (case.main.cache.tensor.view(dtype), case.main.cache.tensor[:, :, 0].view(dtype)):
        out, _ = sparse_mla_decode(**case.arguments | {"kv_cache": cache}, impl="mma")
        assert torch.equal(out, expected)


@every_impl
def test_an_empty_batch(impl):
    case = a_case()
    empty = case.arguments | {
        "q": case.q[:0], "indices": case.main.indices[:0], "topk_length": case.main.length[:0],
    }  # fmt: skip
    out, lse = sparse_mla_decode(**empty, impl=impl)
    assert out.shape == (0, 2, 512) and lse.shape == (0, 2)


@every_impl
def test_a_cache_without_pages_serves_absent_candidates(impl):
    cache = torch.empty(0, 64, 1, 584, dtype=torch.uint8)
    q, indices = torch.zeros(1, 2, 512).bfloat16(), torch.full((1, 3), -1, dtype=torch.int32)
    out, lse = sparse_mla_decode(q, cache, indices, impl=impl, validate=True)
    assert not out.any() and bool((lse == torch.inf).all())


def test_a_plan_of_the_callers(launched):
    case = a_case()
    plan = Plan("split_k", Tile(16, 16, 4), 3)
    out, lse = sparse_mla_decode(**case.arguments, plan=plan)
    assert launched == [plan]
    assert cases.compare(out, lse, case.expected(), cases.rounded_factors("split_k")) == []


@every_impl
def test_validate_passes_what_is_right(impl):
    case = a_case()
    out, lse = sparse_mla_decode(**case.arguments, impl=impl, validate=True)
    assert cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == []


@every_impl
def test_scratch_after_a_larger_call(impl, tally):
    """Stale, finite partials of a call with more splits must not be merged into one with fewer."""
    tally("scratch that nobody wrote")
    case = a_case(rows=(("dense", "K"), ("none", "K"), ("dense", 1)), width=40)
    options = {"num_splits": 5} if impl == "split_k" else {}
    scratch = torch.full((cases.needed_workspace(case, impl, **options) + 64,), 0x41, dtype=torch.uint8)
    sparse_mla_decode(**case.arguments, impl=impl, workspace=scratch, **options)
    case.main.length.copy_(torch.tensor([1, 0, 0]))
    case.main.rows[0, 1:] = case.main.rows[2, :] = case.main.cache.slots.numel()
    out, lse = sparse_mla_decode(**case.arguments, impl=impl, workspace=scratch, **options)
    assert cases.compare(out, lse, case.expected(), cases.rounded_factors(impl)) == []


@every_impl
def test_garbage_heads_stay_alone(impl, tally):
    """Tensor parallelism leaves NaN in the heads of other ranks: it may not reach this rank's."""
    tally("NaN in other heads")
    case = a_case(heads=5)
    case.q[:, 2] = torch.nan
    case.sink = torch.tensor([0.0, 1.0, torch.nan, -1.0, 0.5])
    out, lse = sparse_mla_decode(**case.arguments, impl=impl)
    keep = [0, 1, 3, 4]
    real = cases.Case(case.q[:, keep], case.main, sink=case.sink[keep])
    assert cases.compare(out[:, keep], lse[:, keep], real.expected(), cases.rounded_factors(impl)) == []


@pytest.mark.parametrize("scale", [0.0, -0.05, 1])
def test_any_scale(scale):
    case = a_case()
    case.scale = scale
    out, lse = sparse_mla_decode(**case.arguments, impl="mma")
    assert cases.compare(out, lse, case.expected(), 1) == []


def test_inputs_are_left_alone():
    case = a_case()
    before = [tensor.clone() for tensor in (case.q, case.main.indices, case.main.length)]
    raw = torch.empty(0, dtype=torch.uint8).set_(case.main.cache.tensor.untyped_storage())
    bytes_before = raw.clone()
    sparse_mla_decode(**case.arguments, impl="split_k", num_splits=2)
    assert all(map(torch.equal, before, (case.q, case.main.indices, case.main.length)))
    assert torch.equal(raw, bytes_before)


def test_pages_packed_by_an_engine():
    """Four layers' pages in one block: the view of one layer starts inside and steps over the others."""
    kv = torch.randn(128, 512).bfloat16()
    packed = pack_cache(kv, 64)
    block = torch.full((2, 4, 37_440), cases.NAN_BYTE, dtype=torch.uint8)
    block[:, 2, : 584 * 64] = torch.as_strided(packed, (2, 584 * 64), (37_440, 1))
    layer = block[:, 2].as_strided((2, 64, 1, 584), (4 * 37_440, 584, 584, 1), 2 * 37_440)
    q, indices = torch.randn(1, 2, 512).bfloat16(), torch.tensor([[127, 0, 64, 63]], dtype=torch.int32)
    expected = sparse_mla_decode(q, packed, indices, impl="mma")
    assert all(map(torch.equal, sparse_mla_decode(q, layer, indices, impl="mma"), expected))


def test_a_per_head_plan_has_tiles_of_one_head():
    with pytest.raises(ValueError, match="^plan: got block_h=16 with impl='simt', accepted is 1"):
        sparse_mla_decode(**a_case().arguments, plan=Plan("simt", Tile(16, 16, 8)))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9)])
def test_before_hopper_the_staged_rung_is_not_chosen(monkeypatch, capability):
    """Its tiles with producers do not compile there, and the compiler ends the process over it."""
    monkeypatch.setattr(api.triton_mode, "interpreted", lambda: False)
    card = planning.Device(108, capability, 101_376)
    monkeypatch.setattr(planning, "device_of", lambda tensor: card)
    inputs = SimpleNamespace(q=SimpleNamespace(device=torch.device("cuda", 0)))
    assert api.why_not_staged(inputs) == "it needs compute capability 9.0 or later"


@pytest.mark.parametrize(("stride", "copied"), [("padded", True), ("packed", False)])
def test_rows_between_multiples_of_16_bytes_are_not_copied(monkeypatch, stride, copied):
    """584 bytes an entry: an odd number of entries a page, packed, leaves every second page between them."""
    launched = []
    monkeypatch.setattr(launch, "run", lambda inputs, plan, *rest: launched.append(plan))
    monkeypatch.setattr(api, "why_not_staged", lambda inputs: None)
    monkeypatch.setattr(planning, "device_of", lambda tensor: planning.Device(132, (9, 0), 232_448))
    given = a_case(heads=8, stride=stride).arguments
    plan = Plan("staged", Tile(*FEW_HEADS_TILES[0]))
    sparse_mla_decode(**given)
    if copied:
        sparse_mla_decode(**given, plan=plan)
    else:
        with pytest.raises(ValueError, match="^plan: got a tile of 8 heads.*start at multiples of 16 bytes"):
            sparse_mla_decode(**given, plan=plan)
    assert [one.tile.few for one in launched] == ([True, True] if copied else [False])
    assert all(one.impl == "staged" for one in launched)
