"""Counts of work and bytes against numbers worked out by hand and published ones."""

import pytest

from kernels.lab import occupancy as occ
from kernels.lab import roofline


def test_attention_counts_for_one_row():
    work = roofline.attention(1, 64, 512)
    assert work.flops == 67_108_864
    assert work.bytes == 588 * 512 + 64 * 2052
    assert work.parts["kv"] == 299_008


@pytest.mark.parametrize(("batch", "us"), [(1, 0.24), (4, 0.97), (16, 3.86), (64, 15.4), (128, 30.9)])
def test_the_roof_of_the_rtx_pro_6000_at_512_candidates(batch, us):
    found = roofline.roof(roofline.attention(batch, 64, 512), "rtx-pro-6000")
    assert found.us == pytest.approx(us, rel=0.02) and found.bound == "memory"


def test_the_h200_turns_arithmetic_bound_near_1100_candidates():
    bounds = [roofline.roof(roofline.attention(64, 64, k), "h200", measured=True).bound for k in (1000, 1200)]
    assert bounds == ["memory", "arithmetic"]


def test_one_head_a_block_asks_for_everything_64_times():
    assert (
        roofline.redundancy(64) == 64
        and roofline.redundancy(64, 32) == 2
        and roofline.redundancy(63, 32) == 2
    )
    live = roofline.attention(16, 64, 512).parts["kv"]
    assert roofline.requested_kv_bytes(16, 64, 512) == 64 * live


def test_the_campaigns_scratch_arithmetic():
    claim = roofline.scratch_claim()
    assert claim.layer_mb == pytest.approx(6.291456)
    assert claim.step_mb == pytest.approx(541.065216)
    # 6.2 MB is one way, 530 MB both ways: the articles round down, by less than 2.5 %.
    assert -0.025 < claim.layer_difference < 0 and -0.025 < claim.step_difference < 0
    assert claim.step_one_way_mb < 0.52 * claim.stated_step_mb


def test_combine_reads_what_the_splits_wrote():
    parts = roofline.combine(16, 64, 6, 4).parts
    assert parts["partial_output"] + parts["partial_lse"] == sum(roofline.scratch(16, 64, 6, 4).values())
    assert parts["partial_output"] == 2 * roofline.scratch(16, 64, 6, 2)["partial_output"]


def test_the_indexer_follows_the_length_and_the_uncapped_one_the_capacity():
    assert roofline.indexer(1, 2048).parts["keys"] == 132 * 2048
    wide, narrow = roofline.uncapped_indexer(1, 262_144), roofline.uncapped_indexer(1, 2048)
    assert wide.parts["keys"] == pytest.approx(34.6e6, rel=1e-2)
    assert wide.bytes / narrow.bytes == pytest.approx(128, rel=1e-2)
    assert wide.bytes > 5 * roofline.indexer(1, 262_144).bytes


@pytest.mark.parametrize("bad", [{"batch": 0}, {"heads": 0}, {"candidates": -1}])
def test_impossible_shapes_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        roofline.attention(**({"batch": 1, "heads": 64, "candidates": 512} | bad))


def test_occupancy_names_the_limit_that_binds():
    found = occ.occupancy(49_152, 128, 256, "sm_120")
    assert (found.by_shared, found.by_registers, found.by_warps, found.by_slots) == (2, 2, 6, 24)
    assert occ.occupancy(40_960, 255, 256, "sm_120").limiter == "registers"
    assert occ.occupancy(101_376, 64, 128, "sm_120").blocks == 1
    over = occ.occupancy(101_377, 64, 128, "sm_120")
    assert over.blocks == 0 and over.limiter == "shared memory"
    assert occ.registers_per_block(255, 256) == 65_536 and occ.registers_per_block(33, 32) == 1280


def test_the_campaigns_grids_fall_into_waves():
    one = occ.waves(1, 2, 1, 188)
    assert (one.blocks, one.busy_sms, one.waves) == (2, 2, 1)
    assert occ.waves(16, 2, 6, 188).blocks == 192 and occ.waves(16, 2, 6, 188).waves == 2
    assert occ.waves(16, 2, 6, 188, resident=2).waves == 1
    tail = occ.waves(64, 2, 2, 188)
    assert (tail.full, tail.tail, tail.efficiency) == (1, 68, 256 / 376)
    with pytest.raises(ValueError, match="splits: got 0"):
        occ.waves(1, 2, 0, 188)
