"""The variants of the sm_120 tile: right within their accuracy class, legal for sm_120, and refused where not."""

import pytest
import torch

from kernels.lab import compile as lab
from kernels.lab.compile import request
from kernels.lab.variants import VARIANTS, decode, emulation, query_registers, variant_of
from kernels.lab.variants.plan import BF16_TOLERANCE, E4M3_STEP
from kernels.sparse_mla import Tile, layout, sparse_mla_decode_reference

TILE = Tile(16, 32, 4)
PAGE = 16
MODULE = "kernels.lab.variants.signatures"


def _inputs(topk=40, lengths=(40, 33, 0), heads=5, seed=3):
    """Groups and tokens of very different scales, every fifth candidate absent, NaN in all bytes that do not count."""
    generator = torch.Generator().manual_seed(seed)
    batch, tokens = len(lengths), 96
    q = torch.randn(batch, heads, 512, generator=generator).to(torch.bfloat16)
    indices = torch.stack([torch.randperm(tokens, generator=generator)[:topk] for _ in lengths]).int()
    indices[:, ::5] = -1
    length = torch.tensor(lengths, dtype=torch.int32)
    live = indices[(torch.arange(topk) < length[:, None]) & (indices >= 0)].unique().long()
    cache = layout.allocate_cache(tokens // PAGE, PAGE, fill=0xFF)
    kv = torch.randn(live.numel(), 512, generator=generator)
    size = torch.randint(-5, 1, (live.numel(), 8), generator=generator).float()
    layout.store_kv(cache, live, (kv * torch.exp2(size).repeat_interleave(64, 1)).to(torch.bfloat16))
    return {"q": q, "kv_cache": cache, "indices": indices, "topk_length": length}


def _rms(got, want):
    return float((got.double() - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt())


def _assert_right(variant, given, want, want_lse, got, got_lse):
    full = given["topk_length"] > 0
    assert (got[~full] == 0).all() and torch.isposinf(got_lse[~full]).all()
    assert _rms(got[full], want[full]) <= variant.tolerance
    live = int(given["topk_length"][full].min()) * 4 // 5
    off = (got_lse[full] - want_lse[full]).abs() / want_lse[full].abs().clamp_min(1)
    assert off.max() <= variant.lse_tolerance(live)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_right_within_its_class(name, num_splits):
    given = _inputs()
    got, got_lse = decode(name, **given, tile=TILE, num_splits=num_splits)
    _assert_right(VARIANTS[name], given, *sparse_mla_decode_reference(**given), got, got_lse)


@pytest.mark.parametrize("name", ["byte_tiles", "folded", "folded_half", "value_columns", "scaled_both"])
def test_every_groups_scale_counts(name):
    given = _inputs(topk=32, lengths=(32,), heads=2)
    want, _ = sparse_mla_decode_reference(**given)
    for group in range(layout.NUM_GROUPS):
        changed = given["kv_cache"].clone(memory_format=torch.preserve_format)
        layout.scale_rows(changed)[..., group] += 1
        got, _ = decode(name, **given | {"kv_cache": changed}, tile=TILE)
        columns = slice(64 * group, 64 * group + 64)
        assert _rms(got[..., columns], want[..., columns]) > VARIANTS[name].tolerance


def test_sinks_and_a_scale_of_the_callers():
    given = _inputs(lengths=(70,)) | {"attn_sink": torch.randn(5), "softmax_scale": 0.03}
    want, want_lse = sparse_mla_decode_reference(**given)
    got, got_lse = decode("byte_tiles", **given, tile=TILE)
    assert _rms(got, want) <= BF16_TOLERANCE and torch.allclose(got_lse.double(), want_lse, rtol=1e-5)


# The class of FP8


@pytest.mark.parametrize("name", ["scaled_scores", "scaled_both"])
def test_fp8_rounds_as_stated_and_nothing_else(name):
    given = _inputs()
    variant = VARIANTS[name]
    want, want_lse = emulation.decode(**given, block_t=TILE.block_t, fp8_values=variant.rounded == 2)
    got, got_lse = decode(name, **given, tile=TILE)
    full = given["topk_length"] > 0
    assert _rms(got[full], want[full]) <= BF16_TOLERANCE
    assert torch.allclose(got_lse[full].double(), want_lse[full], rtol=1e-5)
    exact, _ = sparse_mla_decode_reference(**given)
    # A class of its own: were it as good as bfloat16, it would have to be held to bfloat16's tolerance
    assert _rms(want[full], exact[full]) > BF16_TOLERANCE


def test_rounding_by_blocks_is_mx():
    x = (
        torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
        * torch.logspace(-30, 30, 64)[:, None]
    )
    rounded = emulation.round_blocks(x)
    assert 0.5 * E4M3_STEP < _rms(rounded / x, torch.ones_like(x, dtype=torch.float64)) < E4M3_STEP * 1.05
    assert torch.equal(emulation.round_blocks(rounded), rounded)
    assert (emulation.round_blocks(torch.zeros(1, 32)) == 0).all()
    edge = torch.full((1, 32), 448.0)
    assert torch.equal(emulation.round_blocks(edge), edge.double())


# What float16 cannot hold


def test_half_loses_small_numbers_and_folded_half_does_not():
    from kernels.lab.chapters import redesign

    far = redesign.far_range("cpu")
    assert far["half"] > 0.5
    assert far["byte_tiles"] <= BF16_TOLERANCE and far["folded_half"] <= BF16_TOLERANCE
    near = redesign.far_range("cpu", shift=2)
    assert near["half"] <= BF16_TOLERANCE


# Refusals


def test_what_is_not_accepted_is_named():
    given = _inputs(topk=32, lengths=(32,))
    with pytest.raises(ValueError, match="variant: got 'scaled', accepted are .*scaled_both"):
        decode("scaled", **given)
    storage = torch.zeros(10_000, dtype=torch.uint8)
    odd = layout.view_pages(storage, 2, 2, 584 * 2 + 1)
    with pytest.raises(ValueError, match="kv_cache: got an odd"):
        decode("half", **given | {"kv_cache": odd})


def test_a_tolerance_follows_from_what_is_rounded():
    assert variant_of("half").tolerance == BF16_TOLERANCE and variant_of("half").lse_tolerance(1) == 1e-5
    assert variant_of("scaled_both").tolerance == pytest.approx(
        2**0.5 * variant_of("scaled_scores").tolerance
    )
    assert variant_of("scaled_both").lse_tolerance(100) == pytest.approx(0.4 * E4M3_STEP)


def test_edits_must_find_their_lines():
    source = "".join(old for old, _ in query_registers.EDITS)
    assert query_registers.edited(source).count("multiply_rows(held, k_tile, ") == 1
    with pytest.raises(ValueError, match="occurs 0 times"):
        query_registers.edited("nothing of it")


# Compiled


def test_a_changed_variant_is_compiled_again(monkeypatch):
    hashed = []
    monkeypatch.setattr(request, "_files_hash", lambda files: hashed.extend(files) or "")
    request.source_hash(MODULE)
    assert {"_scaled.py", "folded.py", "launch.py"} <= {path.name for path in hashed}


def _assert_legal():
    found = lab.compile_many(lab.make_request(MODULE, name, v.tile) for name, v in VARIANTS.items())
    assert {one.impl: lab.legal(one) for one in found if lab.legal(one)} == {}
    scaled = {one.impl: one for one in found if one.impl.startswith("scaled")}
    for one in scaled.values():
        assert "kind::mxf8f6f4.block_scale" in one.ptx and one.counts.opcodes["QMMA"] > 0
    assert all("block_scale" not in one.ptx for one in found if one.impl not in scaled)


@pytest.mark.slow
def test_every_variant_is_legal_on_sm_120_with_its_tile():
    _assert_legal()


@pytest.mark.gpu
def test_the_compiler_of_a_gpu_machine_agrees():
    _assert_legal()


def test_without_the_instruction_the_same_kernel_is_bfloat16():
    one = lab.compile_kernel(MODULE, "scaled_scores", VARIANTS["scaled_scores"].tile, target="sm_90")
    assert one.ok and "block_scale" not in one.ptx and not one.counts.opcodes.get("QMMA")
