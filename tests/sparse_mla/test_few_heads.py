"""Tiles of rung `staged` for few heads: legal on both targets, right on a GPU for shares and scales of all kinds."""

import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

from kernels.lab import compile as lab
from kernels.sparse_mla import layout, sparse_mla_decode
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.tiles import RELEASES, Tile
from tests.sparse_mla import cases

NAMES = ("staged-few", "staged-few-pair")
TILES = tuple(cases.OTHER_KERNELS[name] for name in NAMES)
LIMIT = {"sm_120": 101_376, "sm_90": 232_448}  # bytes that a block may have


def _requests():
    """Each tile on each target: alone in its row with all there is, and as one of four with one cache."""
    forms = ((1, {"extra_topk": 128, "has_length": True}), (4, {}))
    return [
        lab.make_request(
            "kernels.sparse_mla.signatures", "staged", tile, target, heads=8, num_splits=splits, **more
        )
        for tile, target, (splits, more) in itertools.product(TILES, LIMIT, forms)
    ]


def test_tiles_are_legal_where_the_planner_takes_them():
    """A pair needs more shared memory than sm_120 has. No form spills registers, and none needs `wgmma`."""
    for request, one in zip(asked := _requests(), lab.compile_many(asked), strict=True):
        assert one.error is None and one.spill_store_bytes == 0, request
        assert (one.shared_bytes <= LIMIT[one.target]) == (one.target == "sm_90" or not one.tile["pair"])
        assert one.counts.opcodes["HMMA"] > 0 and "HGMMA" not in one.counts.opcodes
        assert one.counts.opcodes["UBLKCP"] > 0, "rows are copied whole"
        assert ("STAS" in one.counts.opcodes) == one.tile["pair"], "a pair gives parts of results away"


def test_nothing_else_begins_in_the_reserved_buffer():
    """PTX counts addresses from the begin of shared memory on: that is right as long as Triton puts nothing there."""
    code = "from tests.sparse_mla import reserved; reserved.main()"
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    for tile, (reserved, begins) in zip(TILES, json.loads(run.stdout.splitlines()[-1]), strict=True):
        assert begins and min(begins) >= reserved > tile.num_stages * 32 * 608, (tile, begins, reserved)


def test_what_makes_a_tile_one_for_few_heads():
    assert all(tile.few and not tile.wide and tile.launched_warps == 4 for tile in TILES)
    assert not any(Tile(*sizes).few for sizes in ((16, 32, 4), (16, 64, 8), (64, 128, 8, 1, True)))
    alone, pair = (Plan("staged", tile, 3) for tile in TILES)
    assert pair.blocks(5, 8) == 2 * alone.blocks(5, 8) == 30


@pytest.mark.parametrize(
    "sizes",
    [
        (8, 32, 8),
        (8, 32, 8, 4),
        (8, 32, 8, 4, True, 4),
        (8, 32, 8, 8, False, 4),
        (8, 64, 4, 2, False, 4),
        (16, 32, 4, 1, False, 0, True),
    ],
)
def test_another_tile_of_8_heads_is_refused(sizes):
    with pytest.raises(ValueError, match="accepted of 8 heads are"):
        Tile(*sizes)


def _run(name, num_splits, arguments, number=0):
    plan = Plan("staged", cases.OTHER_KERNELS[name], num_splits, list(RELEASES)[number % len(RELEASES)])
    return sparse_mla_decode(**arguments, plan=plan)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [1, 3, 8, 20])
@pytest.mark.parametrize(("caches", "num_splits"), [(1, 1), (2, 1), (2, 5)])
def test_shares_of_every_kind_are_right(name, heads, caches, num_splits):
    """A part of a tile, a tile, one for each team, all the room there is, each and one candidate more, and many."""
    tile = cases.OTHER_KERNELS[name].block_t
    room = tile * cases.OTHER_KERNELS[name].num_stages
    counts = (1, tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 1, room, room + 1, 3 * room, 2048)
    for number, topk in enumerate(counts):
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
