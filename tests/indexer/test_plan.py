"""Choices made on the host: buckets, grids, slices; none of them knows a length but the cap."""

import pytest

from kernels.indexer import plan


@pytest.mark.parametrize("max_seq_len", [1, 2048, 2049, 262144, 300000])
def test_the_ladder_ends_with_the_width(max_seq_len):
    ladder = plan.cap_ladder(max_seq_len)
    assert ladder == sorted(set(ladder)) and ladder[-1] == max_seq_len
    for longest in {0, 1, 2048, 2049, max_seq_len - 1, max_seq_len}:
        cap = plan.context_cap(longest, max_seq_len)
        assert cap in ladder and cap >= min(longest, max_seq_len)
        smaller = [bucket for bucket in ladder if bucket < cap]
        assert not smaller or smaller[-1] < longest
    assert plan.context_cap(max_seq_len + 5, max_seq_len) == max_seq_len
    with pytest.raises(ValueError, match="max_seq_len: got 0, accepted"):
        plan.cap_ladder(0)


@pytest.mark.parametrize("name", plan.LOGITS_TILES)
def test_every_group_of_rows_has_programs(name):
    tile = plan.LOGITS_TILES[name]
    for batch in (1, 32, 33, 128, 65536):
        groups = -(-batch // tile.group_rows)
        programs = plan.logits_programs(tile, batch, 132)
        assert programs >= 132 * tile.programs_per_sm and programs // groups >= 8


@pytest.mark.parametrize("name", plan.TOPK_TILES)
def test_slices_fit_the_device_and_the_chunk(name):
    tile = plan.TOPK_TILES[name]
    assert tile.chunk >= 1024 and tile.chunk < 2**15 and tile.merge_chunk < 2**15
    assert plan.topk_slices(tile, 1, 132) == tile.max_slices
    assert plan.topk_slices(tile, 65536, 132) == 1
    assert plan.topk_slices(tile, 0, 132) >= 1


@pytest.mark.parametrize(
    "capability,name", [(None, "interpreter"), ((9, 0), "sm90"), ((12, 0), "sm120"), ((12, 1), "sm120")]
)
def test_device_class(capability, name):
    assert plan.device_class(capability) == name
