"""Measures the staged rung's tiles and split counts and writes the planner's table.

The table holds, for each device class, head count, candidate count and batch, the fastest tile and split count
whose result is right. "sm120" tiles keep to sm_120's limits whatever card measures them.
"""

import json
import multiprocessing
import os
from dataclasses import astuple, replace
from itertools import product

from kernels.lab import timing
from kernels.lab.experiments import sparse
from kernels.lab.experiments.point import Point
from kernels.sparse_mla.tiles import (
    FEW_HEADS_TILES,
    RELEASES,
    TABLE,
    WIDE_SHARE,
    WIDE_UNIT,
    Choice,
    Tile,
    choices,
)

HEADS = (8, 16, 32, 64)
CANDIDATES = (512, 640, 2048)
WINDOW = 128  # 640 candidates are 512 and a sliding window in a cache of its own
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
# The fields of a `Tile`: block_h, block_t, num_warps, buffers, wgmma, producer_warps, pair
TILES = {
    "sm120": [FEW_HEADS_TILES[0], (16, 32, 4, 1, False, 0), (16, 64, 8, 1, False, 0), (32, 32, 8, 1, False, 0),
              (64, 16, 8, 1, False, 0), (64, 16, 8, 2, False, 4), (16, 32, 4, 2, False, 4)],
    "sm90": [*FEW_HEADS_TILES, (16, 32, 4, 1, False, 0), (16, 64, 8, 1, False, 0), (32, 32, 8, 1, False, 0),
             (32, 32, 4, 1, False, 0), (64, 32, 8, 1, True, 0), (64, 32, 8, 2, True, 0),
             (64, 64, 8, 1, True, 0), (64, 64, 8, 2, True, 4), (64, 128, 8, 1, True, 0)],
}  # fmt: skip
MOST_SPLITS = 64
MARGIN = 0.985  # of the table's time: a new tile has to be better by more than what two runs differ


def split_counts(batch: int, heads: int, candidates: int, tile, sm_count: int) -> list[int]:
    """Splits worth timing: equal shares of the tiles that put about half a block to two on a multiprocessor."""
    shared_in = WIDE_UNIT if Tile(*tile).wide else tile[1]
    groups, tiles = -(-heads // tile[0]), -(-candidates // shared_in)
    full = sm_count / (batch * groups * (2 if Tile(*tile).pair else 1))
    low, high = min(MOST_SPLITS, tiles, max(1, int(full / 2))), min(MOST_SPLITS, max(1, round(full * 2)))
    # The fewest splits for each largest share; in between, some blocks would only have less to do
    even = {-(-tiles // share) for share in range(1, tiles + 1)}
    return sorted(count for count in even if low <= count <= high) or [low]


def _for_heads(tile: Tile, heads: int) -> bool:
    """Whether a tile is worth timing for a number of heads: little padding, and few heads in one block.

    Half of a wide tile may be padding: `wgmma` multiplies 64 rows at least.
    """
    if tile.few:
        return heads <= tile.block_h
    return tile.block_h <= (2 * heads if tile.wide else max(16, heads))


def points(
    device_class: str, heads: int, candidates: int, batch: int, sm_count: int, tiles=None
) -> list[Point]:
    """Every tile and split count to time for one row of the table.

    With `tiles`, only these, beside what the table has.
    """
    window = WINDOW if candidates == 640 else 0
    shape = Point("sparse_mla_decode", "staged", batch, heads=heads, topk=candidates - window, swa_tokens=window,
                  tile_class="sm120" if device_class == "sm120" else "native")  # fmt: skip
    wanted = [tile for tile in tiles or TILES[device_class] if _for_heads(Tile(*tile), heads)]
    found = [
        replace(shape, tile=tile, num_splits=split)
        for tile in wanted
        for split in split_counts(batch, heads, candidates, tile, sm_count)
    ]
    if tiles:
        where = {"device_class": device_class, "heads": heads, "candidates": candidates, "batch": batch}
        found += [
            replace(shape, tile=astuple(row.tile), num_splits=row.num_splits, release=row.release)
            for row in choices()
            if all(getattr(row, name) == value for name, value in where.items())
        ]
    return found


def suits_all(tile: Tile) -> bool:
    """Whether the planner may take a tile for any call that rung `staged` takes."""
    return not (tile.wide or tile.few)


def _compile(task) -> str | None:
    """Compile one tile's kernels in another process, so that the timing process finds them in Triton's cache."""
    tile, heads, splits, window, topk = task
    point = Point(
        "sparse_mla_decode",
        "staged",
        1,
        heads=heads,
        topk=topk,
        tile=tile,
        num_splits=splits,
        swa_tokens=window,
    )
    try:
        sparse.build(point, sets=1, pool_tokens=1024).calls[0]()
    except Exception as error:  # a tile that does not compile is reported and left out
        return f"{tile}: {type(error).__name__}: {error}"
    return None


def _tasks(tiles, heads, candidates) -> list[tuple]:
    """Every kernel that will be timed, once. Triton compiles another where the heads are no multiple of 16."""
    counts = {
        min((h for h in heads if (h % 16 == 0) == even), default=0) for even in (True, False)
    } - {0}  # fmt: skip
    windows = {WINDOW if width == 640 else 0 for width in candidates}
    tasks = [
        (tile, count, splits, window, 512)
        for tile, count, splits, window in product(tiles, counts, (1, 2), windows)
    ]
    # A wide tile's kernel is another for every share: of nine splits here, so that a window leaves something
    tasks += [
        (tile, count, 9, window, 9 * WIDE_UNIT * share - window)
        for tile, count, window in product(tiles, counts, windows)
        if Tile(*tile).wide
        for share in range(1, WIDE_SHARE + 1)
    ]
    return tasks


def tune(
    device_classes=("sm120", "sm90"), heads=HEADS, candidates=CANDIDATES, batches=BATCHES, samples: int = 9,
    tiles=None,
):  # fmt: skip
    """Time every point and return (rows of the table, all timings). Prints a line a row.

    tiles: as in `points`; they are timed as tiles of every class given.
    """
    import torch

    sm_count = torch.cuda.get_device_properties(0).multi_processor_count
    known = [
        astuple(row.tile) for row in choices() if row.device_class in device_classes and row.heads in heads
    ]
    named = [*tiles, *known] if tiles else [tile for name in device_classes for tile in TILES[name]]
    tasks = _tasks(list(dict.fromkeys(named)), heads, candidates)
    with multiprocessing.get_context("spawn").Pool(min(14, os.cpu_count() or 1)) as pool:
        for problem in filter(None, pool.map(_compile, tasks, chunksize=1)):
            print("left out:", problem)
    rows, timings = [], []
    for name, count, width, batch in product(device_classes, heads, candidates, batches):
        found = timed(points(name, count, width, batch, sm_count, tiles), samples)
        # The best two again, with the combine kernel released later
        found += timed(
            [
                replace(point, release=release)
                for _, point in found[:2]
                for release in list(RELEASES)[1:]
                if point.num_splits > 1
            ],
            samples,
        )
        if not found:
            continue
        found.sort(key=lambda pair: pair[0])
        best_us, best = chosen(found, name) if tiles else found[0]
        timings += [{**row_of(name, p), "us": round(us, 2)} for us, p in found]
        rows.append(row_of(name, best))
        # Behind a wide tile or one for few heads, the best other one: for calls that those do not suit
        others = [point for _, point in found if suits_all(Tile(*point.tile))]
        if not suits_all(Tile(*best.tile)) and others:
            rows.append(row_of(name, others[0]))
        print(
            f"{name} H={count} K={width} B={batch}: {best_us:.2f} us with {best.tile}, {best.num_splits} splits, "
            f"released at {best.release}",
            flush=True,
        )
    return rows, timings


def chosen(found: list[tuple[float, Point]], device_class: str) -> tuple[float, Point]:
    """The fastest, or what the table has if the fastest is hardly faster. The first of `found` is the fastest."""
    table = [astuple(row) for row in choices()]
    for us, point in found:
        if us * MARGIN > found[0][0]:
            break
        row = row_of(device_class, point)
        if astuple(Choice(**row | {"tile": Tile(*row["tile"])})) in table:
            return us, point
    return found[0]


def timed(points: list[Point], samples: int) -> list[tuple[float, Point]]:
    """(microseconds, point) of the points whose result is right, the fastest first."""
    found = []
    for point in points:
        try:
            case = sparse.build(point)
            error, problem = case.check()
            if problem is not None or not error <= case.tolerance:
                print("wrong:", point.tile, point.num_splits, error, problem)
                continue
            found.append((timing.chain(case.calls, samples=samples, budget_s=0.03).median_us, point))
        except Exception as failure:
            print("failed:", point.tile, point.num_splits, type(failure).__name__, str(failure)[:100])
    return sorted(found, key=lambda pair: pair[0])


def row_of(device_class: str, point: Point) -> dict:
    """A row of the table."""
    candidates = point.topk + point.swa_tokens
    return {"device_class": device_class, "heads": point.heads, "candidates": candidates, "batch": point.batch,
            "tile": list(point.tile), "num_splits": point.num_splits, "release": point.release}  # fmt: skip


def merged(rows: list[dict], earlier: list[dict]) -> list[dict]:
    """A table's earlier rows with the new ones in their places, in the table's order."""

    def shape(row):
        return tuple(row[name] for name in ("device_class", "heads", "candidates", "batch"))

    measured = {shape(row) for row in rows}
    return sorted([*(row for row in earlier if shape(row) not in measured), *rows], key=shape)


def write(rows: list[dict], path=TABLE) -> None:
    """Write the table, one row a line; rows of shapes that were not measured again stay as they are."""
    rows = merged(rows, json.loads(TABLE.read_text())["staged"])
    path.write_text('{"staged": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]}\n")
