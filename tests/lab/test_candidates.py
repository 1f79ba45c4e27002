"""The one-pass candidate: legal on sm_90 for every share that it accepts, refused elsewhere, right on a GPU."""

import pytest
import torch

from kernels.lab import compile as lab
from kernels.lab.candidates import launch, plan
from kernels.lab.chapters import one_pass
from kernels.lab.experiments import catalogue
from kernels.lab.experiments import one_pass as points
from kernels.sparse_mla.tiles import RELEASES, Tile
from tests.sparse_mla import cases

SIGNATURES = "kernels.lab.candidates.signatures"
MOST_SHARED = 232_448 - 1024  # of a block on sm_90, less what the hardware keeps for itself


def _request(chunks: int, **shape):
    given = {"topk": 32 * chunks, "num_splits": 1} | shape
    return lab.make_request(SIGNATURES, "one_pass", plan.TILE, "sm_90", **given)


def test_every_share_that_is_accepted_is_legal():
    widths = range(1, plan.MOST_CHUNKS + 1)
    found = lab.compile_many(
        [_request(chunks) for chunks in widths] + [_request(3, extra_topk=96, num_splits=2)]
    )
    for chunks, one in zip([*widths, 3], found, strict=True):
        assert one.error is None
        assert one.shared_bytes <= MOST_SHARED
        # More chunks than buffers: the words of the rest wait beside the accumulator, and a few registers do not fit
        assert one.spill_store_bytes == 0 or (chunks > plan.PER_PASS and one.spill_store_bytes < 512)


def test_it_meets_less_often_than_tile_by_tile():
    shipped, candidate = one_pass.compare().itertuples(index=False)
    assert candidate.registers < shipped.registers and candidate.in_loop == 0
    # Two turns of the shipped loop alone meet oftener; one of its barriers a longer share passes only
    assert candidate.outside < 2 * (shipped.in_loop - 1)


def test_shares_are_counted_by_the_widths():
    assert plan.chunks_of(512, 0, 8) == 2
    assert plan.chunks_of(128, 512, 7) == 3
    assert plan.chunks_of(33, 31, 1) == 3
    assert one_pass.TURNS == 3  # the appendix says so


def test_a_share_that_does_not_fit_is_refused():
    case = _case("cpu", 1, topk=plan.MOST_CHUNKS * plan.TILE.block_t + 1)
    with pytest.raises(ValueError, match="num_splits: got 1, so 6 chunks"):
        launch.decode(**case.arguments, num_splits=1)
    with pytest.raises(ValueError, match="wgmma, which sm_90 has; this is cpu"):
        launch.decode(**case.arguments, num_splits=2)


@pytest.mark.parametrize("tile", [Tile(64, 64, 8, 1, True), Tile(32, 32, 8)])
def test_another_tile_is_refused(tile):
    [one] = lab.compile_many([lab.make_request(SIGNATURES, "one_pass", tile, "sm_90")])
    assert "accepted is 'one_pass'" in one.error


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_every_point_of_the_experiment_fits(profile):
    ours = [p for p in catalogue.CATALOGUE["one_pass"].points(profile) if p.impl in points.IMPLS]
    assert ours and {points.IMPLS[p.impl] for p in ours} == set(RELEASES)
    for point in ours:
        assert plan.chunks_of(point.swa_tokens, point.topk, point.num_splits) >= 1
    with pytest.raises(LookupError, match="wgmma"):
        points.build(ours[0], "cpu")


def _case(device: str, caches: int, topk: int = 70, heads: int = 20):
    rows = [("alternating", "K"), ("none", "K"), ("dense", 1), ("dense", 0), ("tail", "K")]
    main = cases.make_side(cases.make_cache(53, 40, device=device), rows, topk, 16)
    extra = (
        cases.make_side(cases.make_cache(2, 40, device=device), rows[::-1], 40, 16) if caches == 2 else None
    )
    q = cases.make_query(len(rows), heads, device=device)
    return cases.Case(q, main, extra, torch.zeros(heads, device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("heads", [20, 64])
@pytest.mark.parametrize(("caches", "topk"), [(1, 70), (1, 150), (2, 70), (2, 110)])
def test_it_is_right_on_a_gpu(caches, topk, heads, num_splits, release):
    if reason := launch.why_not(torch.device("cuda")):
        pytest.skip(reason)
    shape = (caches, topk, heads)
    out, lse = launch.decode(**_case("cuda", *shape).arguments, num_splits=num_splits, release=release)
    expected = _case("cpu", *shape).expected()
    found = cases.compare(out.cpu(), lse.cpu(), expected, cases.rounded_factors("staged"))
    assert not found, found
