"""Tiles of rung `staged` for few heads: legal on both targets, right on a GPU for shares and scales of all kinds."""

import pytest
import torch

from kernels.lab import compile as lab
from kernels.sparse_mla import layout, sparse_mla_decode
from kernels.sparse_mla.launch import STAGED_SEGMENT
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.tiles import RELEASES, Tile
from tests.sparse_mla import cases

NAMES = ("staged-few", "staged-few-128")
TILES = tuple(cases.OTHER_KERNELS[name] for name in NAMES)
LIMIT = {"sm_120": 101_376, "sm_90": 232_448}  # bytes that a block may have


def test_shares_of_every_kind_are_legal():
    """One tile and a loop. The larger tile's loop has too long tables for sm_120, which gets the smaller tile."""
    # The smaller tile alone is in tests/lab/test_legality.py, as one tile
    asked = [
        lab.make_request("kernels.sparse_mla.signatures", "staged", tile, target, heads=8, num_splits=splits)
        for target, tile, splits in (
            ("sm_120", TILES[0], 1), ("sm_120", TILES[1], 4), ("sm_120", TILES[1], 1), ("sm_90", TILES[1], 1),
        )
    ]  # fmt: skip
    for request, one in zip(asked, lab.compile_many(asked), strict=True):
        assert one.error is None and one.spill_store_bytes == 0, request
        loop_of_128 = one.tile["block_t"] == 128 and one.main_loop is not None
        assert (one.shared_bytes <= LIMIT[one.target]) == (one.target == "sm_90" or not loop_of_128)
        assert one.counts.opcodes["HMMA"] > 0 and "HGMMA" not in one.counts.opcodes


def test_what_makes_a_tile_one_for_few_heads():
    assert all(tile.few and not tile.wide and tile.launched_warps == tile.num_warps for tile in TILES)
    assert not any(Tile(*sizes).few for sizes in ((16, 64, 4), (16, 32, 4), (64, 128, 8)))


@pytest.mark.parametrize(
    "sizes",
    [(8, 32, 2), (8, 128, 4), (8, 256, 16), (8, 64, 4, 2), (8, 64, 4, 1, True), (8, 64, 4, 1, False, 4)],
)
def test_another_tile_of_8_heads_is_refused(sizes):
    with pytest.raises(ValueError, match="a tile of 8 heads is 64 candidates on 4 warps or 128 on 8"):
        Tile(*sizes)


def _run(name, num_splits, arguments, number=0):
    plan = Plan("staged", cases.OTHER_KERNELS[name], num_splits, list(RELEASES)[number % len(RELEASES)])
    return sparse_mla_decode(**arguments, plan=plan)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [1, 3, 8, 20])
@pytest.mark.parametrize(("caches", "num_splits"), [(1, 1), (2, 1), (2, 5)])
def test_shares_of_every_kind_are_right(name, heads, caches, num_splits):
    """A part of a tile, a tile, a tile and one candidate, a segment of tables, and one candidate more."""
    tile = cases.OTHER_KERNELS[name].block_t
    for number, topk in enumerate(
        (1, tile - 1, tile, tile + 1, STAGED_SEGMENT, STAGED_SEGMENT + 1, 3 * STAGED_SEGMENT)
    ):
        got = _run(
            name, num_splits, cases.case_of_shares("cuda", caches, topk, heads, tile).arguments, number
        )
        expected = cases.case_of_shares("cpu", caches, topk, heads, tile).expected()
        found = cases.compare(*(x.cpu() for x in got), expected, cases.rounded_factors("staged"))
        assert not found, (topk, found)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("power", [-120, -40, 0, 20])
def test_queries_of_every_size_are_right(name, power):
    """Float16 would overflow or vanish: each head is divided by a power of two of its own."""
    case, host = (cases.case_of_shares(device, 1, 130, 8, 64) for device in ("cuda", "cpu"))
    case.q.mul_(2.0**power)
    case.q[:, 3].zero_()
    host.q.copy_(case.q.cpu())
    got = _run(name, 2, case.arguments)
    found = cases.compare(*(x.cpu() for x in got), host.expected(), cases.rounded_factors("staged"))
    assert not found, found


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_scales_that_lie_far_apart_are_right(name):
    """Groups from 2**-60 to 2**40 in one tile: what counts is a group's error against the group's size.

    Weights are float16 times a factor of the tile's group. One that is 2**-24 of the largest is lost with its
    candidate, as it would be in a sum of bfloat16.
    """
    count, generator = 128, torch.Generator().manual_seed(0)
    kv = torch.randn(count, layout.HEAD_DIM, generator=generator)
    powers = torch.randint(-60, 41, (count, 7), generator=generator).double()
    kv[:, :448] *= (2.0**powers).float().repeat_interleave(64, 1)
    cache = layout.allocate_cache(2, 64, device="cuda")
    slots = torch.arange(count, device="cuda")
    layout.store_kv(cache, slots, kv.bfloat16().cuda())
    values = layout.load_kv(cache, slots).double()
    # Only the rotary columns decide the weights, so that every candidate has some
    q = torch.zeros(1, 8, layout.HEAD_DIM)
    q[..., 448:] = torch.randn(1, 8, 64, generator=generator)
    q = q.bfloat16().cuda()
    arguments = {"q": q, "kv_cache": cache, "indices": slots[None].int(), "softmax_scale": 64**-0.5}
    out, lse = _run(name, 1, arguments)
    scores = q[0].double() @ values.T * 64**-0.5
    want = torch.softmax(scores, 1) @ values
    error = (out[0].double() - want).view(8, 8, 64).pow(2).mean(-1).sqrt()
    size = want.view(8, 8, 64).pow(2).mean(-1).sqrt()
    assert float((error / size).max()) < 4e-3
    torch.testing.assert_close(lse[0].double(), torch.logsumexp(scores, 1), rtol=0, atol=1e-5)
