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
from kernels.sparse_mla.tiles import TABLE

HEADS = (8, 16, 32, 64)
CANDIDATES = (512, 2048)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
# (block_h, block_t, num_warps, buffers, wgmma)
TILES = {
    "sm120": [(16, 32, 4, 1, False), (16, 64, 8, 1, False), (32, 32, 8, 1, False), (64, 16, 8, 1, False)],
    "sm90": [(16, 32, 4, 1, False), (16, 64, 8, 1, False), (32, 32, 8, 1, False), (32, 32, 4, 1, False),
             (64, 64, 8, 1, True), (64, 64, 8, 2, True)],
}  # fmt: skip
MOST_SPLITS = 64


def split_counts(batch: int, heads: int, candidates: int, tile, sm_count: int) -> list[int]:
    """Splits worth timing: about one and two blocks a multiprocessor, never more than there are tiles."""
    groups, tiles = -(-heads // tile[0]), -(-candidates // tile[1])
    full = sm_count / (batch * groups)
    wanted = {1 << max(0, round(exponent)) for exponent in _exponents(full)} | {
        max(1, round(full)),
        max(1, int(full)),
    }
    return sorted({min(split, tiles, MOST_SPLITS) for split in wanted})


def _exponents(full: float) -> list[float]:
    from math import log2

    middle = log2(max(full, 1.0))
    return [middle - 1, middle, middle + 1]


def points(device_class: str, heads: int, candidates: int, batch: int, sm_count: int) -> list[Point]:
    """Every tile and split count to time for one row of the table."""
    shape = Point("sparse_mla_decode", "staged", batch, heads=heads, topk=candidates,
                  tile_class="sm120" if device_class == "sm120" else "native")  # fmt: skip
    tiles = [tile for tile in TILES[device_class] if tile[0] <= max(16, heads)]
    return [
        replace(shape, tile=tile, num_splits=split)
        for tile in tiles
        for split in split_counts(batch, heads, candidates, tile, sm_count)
    ]


def _compile(task) -> str | None:
    """Compile one tile's kernels in another process, so that the timing process finds them in Triton's cache."""
    tile, heads, splits = task
    point = Point("sparse_mla_decode", "staged", 1, heads=heads, topk=512, tile=tile, num_splits=splits)
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
    tasks = [
        (t, h, s) for t in {t for name in device_classes for t in TILES[name]} for h in heads for s in (1, 2)
    ]
    with multiprocessing.get_context("spawn").Pool(min(14, os.cpu_count() or 1)) as pool:
        for problem in filter(None, pool.map(_compile, tasks, chunksize=1)):
            print("left out:", problem)
    rows, timings = [], []
    for name, count, width, batch in product(device_classes, heads, candidates, batches):
        found = []
        for point in points(name, count, width, batch, sm_count):
            try:
                case = sparse.build(point)
                error, problem = case.check()
                if problem is not None or not error <= case.tolerance:
                    print("wrong:", point.tile, point.num_splits, error, problem)
                    continue
                found.append((timing.chain(case.calls, samples=samples, budget_s=0.03).median_us, point))
            except Exception as failure:
                print("failed:", point.tile, point.num_splits, type(failure).__name__, str(failure)[:100])
        if not found:
            continue
        found.sort(key=lambda pair: pair[0])
        best_us, best = found[0]
        timings += [{**row_of(name, p), "us": round(us, 2)} for us, p in found]
        rows.append(row_of(name, best))
        print(
            f"{name} H={count} K={width} B={batch}: {best_us:.2f} us with {best.tile}, {best.num_splits} splits",
            flush=True,
        )
    return rows, timings


def row_of(device_class: str, point: Point) -> dict:
    """A row of the table."""
    return {"device_class": device_class, "heads": point.heads, "candidates": point.topk, "batch": point.batch,
            "tile": list(point.tile), "num_splits": point.num_splits}  # fmt: skip


def write(rows: list[dict], path=TABLE) -> None:
    """Write the table, one row a line."""
    path.write_text('{"staged": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]}\n")
