"""Wide tiles of rung `staged`: legal on sm_90 for every share, and right on a GPU for shares of every kind."""

import pytest

from kernels.lab import compile as lab
from kernels.sparse_mla import sparse_mla_decode
from kernels.sparse_mla.plan import Plan
from kernels.sparse_mla.tiles import RELEASES, WIDE_SHARE, WIDE_UNIT, Tile
from tests.sparse_mla import cases

TILE = cases.OTHER_KERNELS["staged-wide"]
MOST_SHARED = 232_448  # bytes that a block may have on sm_90
LOOP = WIDE_SHARE + 1  # the smallest share that is a loop over tiles


def _request(share):
    topk = WIDE_UNIT * share
    return lab.make_request("kernels.sparse_mla.signatures", "staged", TILE, "sm_90", topk=topk, num_splits=1)


def test_shares_of_every_kind_are_legal():
    """In 64 rows and in 128, with a rest, and as a loop. Those of 4 and 8 units are in tests/lab/test_legality.py."""
    shares = (3, 7, 9, LOOP)
    for share, one in zip(shares, lab.compile_many(map(_request, shares)), strict=True):
        assert one.error is None
        assert one.shared_bytes <= MOST_SHARED
        # The loop has the words of the next tile beside the accumulator: a few registers may not fit
        assert one.spill_store_bytes == 0 or (share == LOOP and one.spill_store_bytes < 64)


def test_what_makes_a_tile_wide():
    assert TILE.wide and TILE.launched_warps == 8
    assert not Tile(64, 64, 8, 1, True).wide and not Tile(64, 128, 8, 1, True, 4).wide
    assert not Tile(64, 128, 8, 1).wide


@pytest.mark.parametrize("sizes", [(32, 128, 8, 1), (64, 128, 4, 1), (64, 128, 8, 2)])
def test_another_wide_tile_is_refused(sizes):
    with pytest.raises(ValueError, match="a wide tile is 64 heads by 128 candidates on 8 warps"):
        Tile(*sizes, True)


@pytest.mark.gpu
@pytest.mark.parametrize("share", range(1, LOOP + 8))
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(("caches", "heads"), [(1, 64), (2, 20)])
def test_shares_of_every_kind_are_right(share, num_splits, caches, heads):
    if "staged-wide" not in cases.runnable_tiles():
        pytest.skip("wide tiles multiply by wgmma, which sm_90 has")
    # The last unit is not full, and a second cache has 3 units
    topk = WIDE_UNIT * (share * num_splits - (3 if caches == 2 else 0)) - 3
    if topk < 1:
        pytest.skip("the second cache alone is more than this share")
    release = list(RELEASES)[share % len(RELEASES)]
    plan = Plan("staged", TILE, num_splits, release)
    out, lse = sparse_mla_decode(
        **cases.case_of_shares("cuda", caches, topk, heads, WIDE_UNIT).arguments, plan=plan
    )
    expected = cases.case_of_shares("cpu", caches, topk, heads, WIDE_UNIT).expected()
    found = cases.compare(out.cpu(), lse.cpu(), expected, cases.rounded_factors("staged"))
    assert not found, found
