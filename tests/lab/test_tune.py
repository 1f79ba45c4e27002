"""The tuner without a GPU: which points it would time, which kernels it compiles first, and what it writes."""

from dataclasses import astuple

import pytest

from kernels.lab import tune
from kernels.lab.experiments.point import Point
from kernels.sparse_mla.tiles import FEW_HEADS_TILES, WIDE_SHARE, WIDE_UNIT, Tile, choices

WIDE = (64, 128, 8, 1, True, 0, False)
FEW, PAIR = FEW_HEADS_TILES


def test_wide_tiles_are_split_in_units():
    for batch, candidates, count in ((16, 640, 8), (32, 640, 4), (16, 512, 8)):
        assert count in tune.split_counts(batch, 64, candidates, WIDE, 132)
    assert max(tune.split_counts(1, 64, 2048, WIDE, 132)) <= tune.MOST_SPLITS


def test_a_tile_that_is_tried_stands_beside_the_table():
    points = tune.points("sm90", 64, 640, 16, 132, [WIDE])
    rows = [row for row in choices() if astuple(row)[:4] == ("sm90", 64, 640, 16)]
    table = {(astuple(row.tile), row.num_splits, row.release) for row in rows}
    assert table and table <= {(p.tile, p.num_splits, p.release) for p in points}
    assert {p.tile for p in points} == {WIDE, *(astuple(row.tile) for row in rows)}
    assert all((p.topk, p.swa_tokens) == (512, 128) for p in points)


def test_every_share_of_a_wide_tile_is_compiled_first():
    tasks = tune._tasks([WIDE, (16, 32, 4, 1, False, 0)], (8, 64), (512, 640))
    assert len(tasks) == len(set(tasks))
    for window in (0, tune.WINDOW):
        shares = {
            -(-(topk + window) // (WIDE_UNIT * splits))
            for tile, _, splits, of, topk in tasks
            if tile == WIDE and of == window
        }
        assert shares >= set(range(1, WIDE_SHARE + 1)) and max(shares) > WIDE_SHARE
    assert all(topk > 0 for *_, topk in tasks)


def test_tiles_are_timed_where_they_fit():
    fit = {
        tile: [heads for heads in tune.HEADS if tune._for_heads(Tile(*tile), heads)] for tile in (FEW, WIDE)
    }
    assert fit == {FEW: [8], WIDE: [32, 64]}
    assert tune._for_heads(Tile(16, 32, 4), 8) and not tune._for_heads(Tile(64, 64, 8, 1, True), 32)


def test_a_pair_has_two_blocks_for_each_split():
    for batch, candidates in ((16, 512), (32, 2048), (64, 2048)):
        alone, pair = (tune.split_counts(batch, 8, candidates, tile, 132) for tile in (FEW, PAIR))
        assert min(pair) <= min(alone) and max(pair) <= max(alone) and pair != alone
    assert tune.split_counts(64, 8, 512, PAIR, 132) == [1, 2]


def test_some_tiles_do_not_suit_every_call():
    suit = {tile: tune.suits_all(Tile(*tile)) for tile in (FEW, PAIR, WIDE, (16, 32, 4))}
    assert suit == {FEW: False, PAIR: False, WIDE: False, (16, 32, 4): True}
    shapes = {}
    for row in choices():
        shapes.setdefault(astuple(row)[:4], []).append(row.tile)
    for tiles in shapes.values():
        assert tune.suits_all(tiles[-1]), "the last row of a shape is for every call"


@pytest.mark.parametrize(("lead", "kept"), [(0.99, True), (0.98, False)])
def test_the_table_stays_where_a_tile_is_hardly_faster(lead, kept):
    row = next(r for r in choices() if astuple(r)[:4] == ("sm90", 64, 640, 128))
    table = Point("sparse_mla_decode", "staged", 128, heads=64, topk=512, swa_tokens=128, tile=astuple(row.tile),
                  num_splits=row.num_splits, release=row.release)  # fmt: skip
    other = Point("sparse_mla_decode", "staged", 128, heads=64, topk=512, swa_tokens=128, tile=WIDE, num_splits=1,
                  release="start")  # fmt: skip
    assert not Tile(*table.tile).wide
    found = [(lead * 40.0, other), (40.0, table)]
    assert tune.chosen(found, "sm90") == found[kept]
    assert tune.chosen(found[:1], "sm90") == found[0]


def test_rows_of_a_shape_replace_all_that_it_had():
    def row(batch, tile):
        return {"device_class": "sm90", "heads": 64, "candidates": 512, "batch": batch, "tile": list(tile),
                "num_splits": 1, "release": "start"}  # fmt: skip

    first, second = (64, 64, 8, 1, True, 0), (64, 32, 8, 2, True, 0)
    earlier = [row(1, WIDE), row(1, second), row(2, first)]
    assert tune.merged([row(1, first)], earlier) == [row(1, first), row(2, first)]
    # The fastest stays in front of the one for calls that it does not suit
    both = [row(1, WIDE), row(1, first)]
    assert tune.merged(both, earlier) == [*both, row(2, first)]
