"""Choices made on the host: buckets, grids, slices; none of them knows a length but the cap."""

import pytest
import torch

from kernels.indexer import paged, plan


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


@pytest.mark.parametrize("batch", [1, 7, 8, 32, 40, 64, 65536])
def test_equal_rows_are_cut_between_programs(batch):
    """A whole number of programs for each row of a group, and no more of them given up than that takes."""
    tile = plan.LOGITS_TILES["sm90"]
    like = dict(device="meta")
    q, weights = torch.empty(batch, 64, 128, **like), torch.empty(batch, 64, **like)
    cache, out = torch.empty(2, 64, 1, 132, **like), torch.empty(batch, 64, **like)
    lens, table = torch.empty(batch, **like), torch.empty(batch, 1, **like)
    programs = plan.logits_programs(tile, batch, 132)
    choices = dict(tile=tile, programs=programs, upcast=False, overlap=True)
    (grid,), arguments = paged.paged_launch(q, cache, weights, lens, table, out, **choices)
    share, rows = arguments["programs_per_group"], arguments["group_rows"]
    assert grid % share == 0 and (share % rows == 0 or share < rows)
    assert programs - grid < rows * grid // share


def test_the_tails_grid_has_one_dimension():
    """The others end at 65,535 blocks: fewer than 2^30 columns have, fewer than 65,536 rows."""
    for batch, width, blocks in ((3, 2**30, 3 * 2**18), (65_536, 64, 65_536)):
        out, lens = torch.empty(batch, width, device="meta"), torch.empty(batch, device="meta")
        assert paged.fill_tail_launch(lens, out, width)[0] == (blocks,)


@pytest.mark.parametrize("name", plan.TOPK_TILES)
def test_slices_fit_the_device_and_the_chunk(name):
    tile = plan.TOPK_TILES[name]
    assert tile.chunk >= 1024 and tile.chunk < 2**15 and tile.merge_chunk < 2**15
    assert tile.held >= tile.chunk and tile.merge_held >= tile.merge_chunk
    assert plan.topk_slices(tile, 1, 132) == tile.max_slices
    assert plan.topk_slices(tile, 65536, 132) == 1
    assert plan.topk_slices(tile, 0, 132) >= 1


@pytest.mark.parametrize(
    "capability,name", [(None, "interpreter"), ((9, 0), "sm90"), ((12, 0), "sm120"), ((12, 1), "sm120")]
)
def test_device_class(capability, name):
    assert plan.device_class(capability) == name


def test_tiles_that_the_kernels_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="^block_t: got 32, accepted are 64 and 128"):
        plan.LogitsTile(block_t=32)
    for chunk in (0, 1000, 32_768):
        with pytest.raises(ValueError, match=f"^chunk: got {chunk}, accepted are powers of two below 32,768"):
            plan.TopkTile(chunk=chunk)
