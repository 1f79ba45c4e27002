"""The planner: the campaign's policy exactly, legal plans only, and nothing but shapes in its decisions."""

import itertools

import pytest
import torch

from kernels.sparse_mla import IMPLS, Plan, Tile, campaign_num_splits, workspace_bytes
from kernels.sparse_mla import plan as planning
from kernels.sparse_mla.plan import RTX_PRO_6000, Device, every_plan
from kernels.sparse_mla.tiles import WIDE_SHARE, wide_share
from tests.sparse_mla import cases

H200 = Device(132, (9, 0), 232_448)
SMALL = Device(1, (8, 0), 101_376)
DEVICES = {"rtx": RTX_PRO_6000, "h200": H200, "small": SMALL}


@pytest.mark.parametrize("batch,splits,blocks", [(1, 8, 16), (16, 6, 192), (32, 3, 192), (64, 2, 256)])
def test_the_campaign_policy(batch, splits, blocks):
    assert campaign_num_splits(batch) == splits
    assert batch * 2 * splits == blocks
    plan = planning.plan(batch, 64, 512, policy="campaign")
    assert plan.num_splits == splits and plan.impl == "split_k"
    assert plan.tile.block_h == 32 and plan.blocks(batch, 64) == blocks


def test_the_campaign_policy_over_every_batch():
    for batch, groups, sms in itertools.product(range(1, 300), (1, 2, 4), (1, 132, 188)):
        splits = campaign_num_splits(batch, groups, sms)
        fills = [n for n in range(1, 9) if batch * groups * n >= sms]
        assert splits == (fills[0] if fills else 8)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("tile_class", ["native", "sm120"])
def test_every_choice_is_in_every_plan(name, tile_class):
    """`every_plan` is what compiles are held to the limits of sm_120; nothing else may be chosen."""
    device = DEVICES[name]
    known = {(plan.impl, plan.tile) for plan in every_plan(device, tile_class)}
    shapes = itertools.product((1, 2, 16, 65_536), (1, 12, 16, 17, 64, 128), (1, 64, 8192), (0, 1, 512))
    for (batch, heads, topk, extra), impl in itertools.product(shapes, ("auto", *IMPLS)):
        for policy in ("default", "campaign"):
            plan = planning.plan(
                batch, heads, topk, extra, device=device, impl=impl, policy=policy, tile_class=tile_class
            )
            assert (plan.impl, plan.tile) in known
            assert 1 <= plan.num_splits <= planning.MAX_SPLITS
            assert impl in ("auto", plan.impl)
            assert (
                plan.impl == "split_k" or plan.num_splits == 1 or plan.impl not in ("serial", "simt", "mma")
            )


def test_default_splits_fill_the_device_and_no_more_than_the_tiles():
    for batch, groups, tiles, sms in itertools.product(
        (1, 3, 64, 999), (1, 2), (0, 1, 5, 400), (1, 132, 188)
    ):
        splits = planning.default_num_splits(batch, groups, tiles, sms)
        assert 1 <= splits <= max(1, min(tiles, 64))
        assert splits == 1 or batch * groups * splits <= sms


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
@pytest.mark.parametrize("name", DEVICES)
def test_the_batch_invariant_plan_looks_at_no_batch(impl, name):
    """It has no batch among its arguments, and a named rung stays."""
    for heads, topk, can_stage in itertools.product((1, 16, 64), (1, 64, 2048), (False, True)):
        options = {"device": DEVICES[name], "impl": impl, "can_stage": can_stage}
        plan = planning.batch_invariant_plan(heads, topk, **options)
        assert impl in ("auto", plan.impl)
        assert can_stage or impl == "staged" or plan.impl != "staged"
        assert plan == planning.plan(8, heads, topk, **options)


def test_workspace_is_partial_outputs_and_lses():
    assert planning.workspace_bytes(16, 64, 6) == 16 * 64 * 6 * (1024 + 4)
    assert planning.workspace_bytes(2, 3, 5, torch.float32) == 30 * (2048 + 4)
    assert workspace_bytes(2, 16, 512, impl="split_k", num_splits=3) == 2 * 16 * 3 * 1028
    assert workspace_bytes(2, 16, 512, impl="mma") == workspace_bytes(2, 16, 512, impl="serial") == 0
    assert workspace_bytes(0, 16, 512) == 0
    invariant = workspace_bytes(1, 64, 512, batch_invariant=True)
    assert workspace_bytes(5, 64, 512, batch_invariant=True) == 5 * invariant > 0


@pytest.mark.parametrize(
    "name,options",
    [
        ("impl", {"impl": "fast"}),
        ("policy", {"policy": "best"}),
        ("tile_class", {"tile_class": "sm90"}),
        ("num_splits", {"num_splits": 0}),
        ("num_splits", {"num_splits": 65}),
        ("num_splits", {"num_splits": 2.0}),
    ],
)
def test_a_wrong_option_is_refused(name, options):
    with pytest.raises(ValueError, match=f"^{name}: got .*, accepted are "):
        planning.plan(1, 64, 512, **options)


@pytest.mark.parametrize("sizes", [(3, 32, 4), (16, 0, 4), (16, 32, 5), (16, 32, 4, 0), (-2, 32, 4)])
def test_tiles_are_powers_of_two(sizes):
    with pytest.raises(ValueError, match="got .*, accepted are"):
        Tile(*sizes)


def test_producers_have_barriers_for_two_buffers():
    assert [Tile(64, 16, 8, buffers, False, 4).num_stages for buffers in (1, 2)] == [1, 2]
    with pytest.raises(ValueError, match="^num_stages: got 3, accepted with producers are 1 and 2$"):
        Tile(64, 16, 8, 3, False, 4)
    assert Tile(64, 16, 8, 3).num_stages == 3


def test_full_batches_of_64_heads_get_producers():
    """The tiles of other kernels that the planner can choose are those that the tests on a GPU run."""
    for batch in (32, 64, 128, 300):
        plan = planning.plan(batch, 64, 512, tile_class="sm120")
        assert plan.impl == "staged" and plan.tile.producer_warps and not plan.tile.wgmma
    tiles = {plan.tile for device in (RTX_PRO_6000, H200) for plan in every_plan(device, "native")}
    assert {tile for tile in tiles if tile.producer_warps or tile.wide or tile.few} == set(
        cases.OTHER_KERNELS.values()
    )
    assert planning.plan(128, 64, 512, device=H200).tile.wgmma


def test_a_loop_over_wide_tiles_is_for_rows_of_full_width():
    """A share of a wide tile takes its time for a whole tile, and lengths may leave a few candidates of it."""
    looped = 0
    widths, splits_asked = (64, 512, 640, 1152, 2048, 8192), (None, 2, 4)
    for batch, heads, topk, extra, splits in itertools.product(
        (1, 2, 4, 8, 16, 32, 64, 128), (20, 64), widths, (0, 128), splits_asked
    ):
        how = {"device": H200, "num_splits": splits}
        full = planning.plan(batch, heads, topk, extra, **how)
        ragged = planning.plan(batch, heads, topk, extra, ragged=True, **how)
        if full.tile.wide and wide_share(topk, extra, full.num_splits) > WIDE_SHARE:
            looped += 1
            assert not ragged.tile.wide
        else:
            assert ragged == full
    assert looped


def test_rows_that_cannot_be_copied_get_another_tile():
    """The copy engine needs rows at multiples of 16 bytes; loads do not."""
    taken = 0
    for batch, heads, topk, device in itertools.product(
        (1, 8, 64, 128), (1, 8, 20), (512, 640, 2048), (RTX_PRO_6000, H200)
    ):
        best, other = (
            planning.plan(batch, heads, topk, device=device, can_copy=can) for can in (True, False)
        )
        taken += best.tile.few
        assert not other.tile.few and (best.tile.few or best == other)
        assert other.num_splits <= planning.MAX_SPLITS and other.impl == best.impl
    assert taken == 48


def test_scratch_has_room_for_rows_that_cannot_be_copied(monkeypatch):
    monkeypatch.setattr(planning, "device_of", lambda tensor: H200)
    for batch, topk in itertools.product((1, 8, 64), (512, 640, 2048)):
        plans = [planning.plan(batch, 8, topk, device=H200, can_copy=can) for can in (True, False)]
        needed = [planning.workspace_bytes(batch, 8, plan.scratch_splits) for plan in plans]
        assert max(needed) <= workspace_bytes(batch, 8, topk)


def test_scratch_has_room_for_rows_with_and_without_lengths(monkeypatch):
    monkeypatch.setattr(planning, "device_of", lambda tensor: H200)
    for batch, topk in itertools.product((4, 8, 16, 64), (512, 640, 2048, 8192)):
        needed = [
            planning.workspace_bytes(
                batch, 64, planning.plan(batch, 64, topk, device=H200, ragged=ragged).scratch_splits
            )
            for ragged in (False, True)
        ]
        assert max(needed) <= workspace_bytes(batch, 64, topk)


def test_warps_of_a_block():
    """Triton is asked for the producers, and the kernel calls on the consumers."""
    assert [tile.launched_warps for tile in (Tile(32, 32, 8), Tile(64, 64, 8, 2, True, 4))] == [8, 4]


def test_blocks():
    tile = Tile(32, 32, 8)
    assert Plan("mma", tile).blocks(3, 66) == 9
    assert Plan("simt", Tile(1, 16, 8)).blocks(3, 66) == 198
    assert Plan("split_k", tile, 7).blocks(1, 64) == 14


@pytest.mark.gpu
def test_a_gpu_is_planned_as_itself():
    device = planning.device_of(torch.empty(0, device="cuda"))
    properties = torch.cuda.get_device_properties(0)
    assert device.sm_count == properties.multi_processor_count
    assert device.capability == torch.cuda.get_device_capability()
    assert planning.device_of(torch.empty(0)) == RTX_PRO_6000
