"""Measures the staged rung's tiles and split counts and writes the planner's table.

The table holds, for each device class, head count, candidate count and batch, the fastest tile and split count
whose result is right. "sm120" tiles keep to sm_120's limits whatever card measures them.
"""

import json
import multiprocessing
import os
from dataclasses import replace
from itertools import product

from kernels.lab import timing
from kernels.lab.experiments import sparse
from kernels.lab.experiments.point import Point
from kernels.sparse_mla.tiles import RELEASES, TABLE

HEADS = (8, 16, 32, 64)
CANDIDATES = (512, 640, 2048)
WINDOW = 128  # 640 candidates are 512 and a sliding window in a cache of its own
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
# The fields of a `Tile`: block_h, block_t, num_warps, buffers, wgmma, producer_warps
TILES = {
    "sm120": [(16, 32, 4, 1, False, 0), (16, 64, 8, 1, False, 0), (32, 32, 8, 1, False, 0), (64, 16, 8, 1, False, 0),
              (64, 16, 8, 2, False, 4), (16, 32, 4, 2, False, 4)],
    "sm90": [(16, 32, 4, 1, False, 0), (16, 64, 8, 1, False, 0), (32, 32, 8, 1, False, 0), (32, 32, 4, 1, False, 0),
             (64, 32, 8, 1, True, 0), (64, 32, 8, 2, True, 0), (64, 64, 8, 1, True, 0), (64, 64, 8, 2, True, 4)],
}  # fmt: skip
MOST_SPLITS = 64


def split_counts(batch: int, heads: int, candidates: int, tile, sm_count: int) -> list[int]:
    """Splits worth timing: equal shares of the tiles that put about half a block to two on a multiprocessor."""
    groups, tiles = -(-heads // tile[0]), -(-candidates // tile[1])
    full = sm_count / (batch * groups)
    low, high = min(tiles, max(1, int(full / 2))), min(MOST_SPLITS, max(1, round(full * 2)))
    # The fewest splits for each largest share; in between, some blocks would only have less to do
    even = {-(-tiles // share) for share in range(1, tiles + 1)}
    return sorted(count for count in even if low <= count <= high) or [low]


def points(device_class: str, heads: int, candidates: int, batch: int, sm_count: int) -> list[Point]:
    """Every tile and split count to time for one row of the table."""
    window = WINDOW if candidates == 640 else 0
    shape = Point("sparse_mla_decode", "staged", batch, heads=heads, topk=candidates - window, swa_tokens=window,
                  tile_class="sm120" if device_class == "sm120" else "native")  # fmt: skip
    tiles = [tile for tile in TILES[device_class] if tile[0] <= max(16, heads)]
    return [
        replace(shape, tile=tile, num_splits=split)
        for tile in tiles
        for split in split_counts(batch, heads, candidates, tile, sm_count)
    ]


def _compile(task) -> str | None:
    """Compile one tile's kernels in another process, so that the timing process finds them in Triton's cache."""
    tile, heads, splits, window = task
    point = Point(
        "sparse_mla_decode",
        "staged",
        1,
        heads=heads,
        topk=512,
        tile=tile,
        num_splits=splits,
        swa_tokens=window,
    )
    try:
        sparse.build(point, sets=1, pool_tokens=1024).calls[0]()
    except Exception as error:  # a tile that does not compile is reported and left out
        return f"{tile}: {type(error).__name__}: {error}"
    return None


def tune(
    device_classes=("sm120", "sm90"), heads=HEADS, candidates=CANDIDATES, batches=BATCHES, samples: int = 9
):
    """Time every point and return (rows of the table, all timings). Prints a line a row."""
    import torch

    sm_count = torch.cuda.get_device_properties(0).multi_processor_count
    # Triton compiles a kernel again where an argument, such as the number of heads, is a multiple of 16
    tasks = [
        (tile, count, splits, window)
        for tile in {tile for name in device_classes for tile in TILES[name]}
        for count in {min((h for h in heads if (h % 16 == 0) == even), default=0) for even in (True, False)}
        - {0}
        for splits in (1, 2)
        for window in {WINDOW if width == 640 else 0 for width in candidates}
    ]
    with multiprocessing.get_context("spawn").Pool(min(14, os.cpu_count() or 1)) as pool:
        for problem in filter(None, pool.map(_compile, tasks, chunksize=1)):
            print("left out:", problem)
    rows, timings = [], []
    for name, count, width, batch in product(device_classes, heads, candidates, batches):
        found = timed(points(name, count, width, batch, sm_count), samples)
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
        best_us, best = found[0]
        timings += [{**row_of(name, p), "us": round(us, 2)} for us, p in found]
        rows.append(row_of(name, best))
        print(
            f"{name} H={count} K={width} B={batch}: {best_us:.2f} us with {best.tile}, {best.num_splits} splits, "
            f"released at {best.release}",
            flush=True,
        )
    return rows, timings


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
    order = ("device_class", "heads", "candidates", "batch")
    found = {tuple(row[name] for name in order): row for row in [*earlier, *rows]}
    return [found[key] for key in sorted(found)]


def write(rows: list[dict], path=TABLE) -> None:
    """Write the table, one row a line; rows of shapes that were not measured again stay as they are."""
    rows = merged(rows, json.loads(TABLE.read_text())["staged"])
    path.write_text('{"staged": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]}\n")
