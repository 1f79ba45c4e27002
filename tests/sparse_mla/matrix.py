"""The fault matrix: which values meet, how a combination becomes a call, and a worker that runs many.

As a program it is one of several that share the GPU's plan: `python -m tests.sparse_mla.matrix cuda FOLDER`.
Compiling takes most of the time there, so each claims what compiles alike at once, in the common folder, until
nothing is left, and leaves its results there as it goes.
"""

import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

from kernels.sparse_mla import IMPLS, ArgumentError
from kernels.sparse_mla.tiles import WIDE_SHARE, WIDE_UNIT
from tests.sparse_mla import cases
from tests.sparse_mla.pairwise import covering

LENGTHS = (None, 0, 1, "tile-1", "tile", "tile+1", "K", -3, "K+5")
WIDTHS = (1, 63, 64, 65, 130, 133, 192, 576, 640, 1152, 2048, 8192)
HEADS = (1, 4, 8, 12, 16, 20, 64, 66, 128)
PAGES = (2, 53, 61, 64, 128, 256)
STRIDES = ("padded", "packed", "wide", "odd")
OFFSETS = (0, 64, 12, 6, 3)  # multiples of 16, of 4, of 2, and odd
SPLITS = (1, 2, 7, 16, 64, None)
SINKS = (None, "-inf", 0.0, 5.0, 1e4, "inf")
EXTRAS = (0, 1, 65, 192)  # index width of the extra cache; 0: none
VIEWS = ("plain", "slices")
SCRATCH = ("bfloat16", "float32")
ROW_LENGTHS = LENGTHS[1:]
# Every pattern at every length, in the rows of one call: all the rows share their neighbours, full or empty.
ALL_ROWS = tuple(itertools.product(cases.PATTERNS, ROW_LENGTHS))
FACTORS = {
    "route": (), "width": WIDTHS, "heads": HEADS, "pattern": cases.PATTERNS, "length": LENGTHS, "page": PAGES,
    "stride": STRIDES, "offset": OFFSETS, "sink": SINKS, "extra": EXTRAS, "view": VIEWS, "scratch": SCRATCH,
}  # fmt: skip
DEFAULTS = {
    "width": 133, "heads": 16, "page": 64, "stride": "padded", "offset": 0, "sink": 5.0, "extra": 0,
    "view": "plain", "scratch": "bfloat16",
}  # fmt: skip


def routes(impls) -> tuple[tuple[str, int | None], ...]:
    """(impl, num_splits) of every way to be served."""
    split = tuple(("split_k", splits) for splits in SPLITS)
    return tuple((impl, None) for impl in (*impls, "auto") if impl != "split_k") + split


def tile_routes(splits=(1, 7)) -> tuple[tuple[str, int], ...]:
    """(name, num_splits) of the other kernels' tiles: with one split the kernel writes the result itself."""
    return tuple(itertools.product(cases.runnable_tiles(), splits))


def sink_of(symbol, heads: int, device) -> torch.Tensor | None:
    """A sink by name, the same for all heads but the first, which has none."""
    if symbol is None:
        return None
    sink = torch.full((heads,), float(symbol))
    if heads > 1:
        sink[0] = -torch.inf
    return sink.to(device)


_CACHES: dict[tuple, cases.Cache] = {}


def cache_of(page, stride, offset, device, live) -> cases.Cache:
    """A poisoned cache, made once for each geometry; kernels never write it."""
    key = (page, stride, offset, str(device), live)
    if key not in _CACHES:
        _CACHES[key] = cases.make_cache(page, live, stride=stride, offset=offset, device=device, seed=page)
    return _CACHES[key]


def build(point: dict, rows, *, device="cpu", live=48, seed=0) -> cases.Case:
    """The call that a point describes; `rows` are (pattern, length by name), one a batch row."""
    impl, _ = point["route"]
    heads, width, extra_width = point["heads"], point["width"], point["extra"]
    tile = cases.planned(impl, heads, width, extra_width, device, len(rows)).tile.block_t
    tile = max(tile, 16)  # the serial rung's tile is one token: use the lengths that matter to the others
    cache = cache_of(point["page"], point["stride"], point["offset"], device, live)
    main = cases.make_side(cache, rows, width, tile, seed=seed, view=point["view"])
    extra = None
    if extra_width:
        # The other cache has another page size, and its rows other patterns and lengths.
        other = PAGES[(PAGES.index(point["page"]) + 1) % len(PAGES)]
        extra_cache = cache_of(other, "padded", 64 if point["offset"] == 0 else point["offset"], device, live)
        last = len(cases.PATTERNS) - 1
        turned = [
            (cases.PATTERNS[last - cases.PATTERNS.index(pattern)],
             length if length is None else ROW_LENGTHS[(ROW_LENGTHS.index(length) + 3) % len(ROW_LENGTHS)])
            for pattern, length in rows
        ]  # fmt: skip
        extra = cases.make_side(extra_cache, turned, extra_width, tile, seed=seed + 1, view=point["view"])
    q = cases.make_query(len(rows), heads, view=point["view"], seed=seed, device=device)
    return cases.Case(q, main, extra, sink_of(point["sink"], heads, device))


def unaligned(point: dict) -> bool:
    """Whether a cache of the point cannot be read by 32-bit words."""
    return point["stride"] == "odd" or point["offset"] % 4 != 0


def run(point: dict, rows, *, device="cpu", live=48, seed=0) -> list[str]:
    """Run a point over stale scratch of two kinds and compare every row; what is wrong, in words."""
    impl, num_splits = point["route"]
    case = build(point, rows, device=device, live=live, seed=seed)
    options = {"num_splits": num_splits, "scratch_dtype": getattr(torch, point["scratch"])}
    fill = cases.NAN_BYTE if seed % 2 == 0 else cases.HUGE_BYTE
    try:
        out, lse, found = cases.decode_guarded(case, impl, scratch_fill=fill, **options)
    except ArgumentError as error:
        if cases.copies_rows(impl) and not case.starts_at_multiples_of(16):
            return [] if "multiples of 16 bytes" in str(error) else [f"refused without its reason: {error}"]
        # A compiled-only rung may refuse a cache that is not aligned to 4 bytes, and nothing else
        if impl in (*cases.INTERPRETABLE, "auto") or not unaligned(point):
            raise
        return (
            []
            if "kv_cache" in str(error) or "impl" in str(error)
            else [f"refused without its reason: {error}"]
        )
    factors = cases.rounded_factors(impl, options["scratch_dtype"])
    return found + cases.compare(out, lse, case.expected(), factors)


def cpu_seconds(point: dict) -> float:
    """About how long the interpreter takes for one row of a point, and a share of the set-up."""
    return 0.05 + _kernel_seconds(point)


def _kernel_seconds(point: dict) -> float:
    impl, num_splits = point["route"]
    plan = cases.planned(impl, point["heads"], point["width"], point["extra"])
    tile = plan.tile
    length = cases.row_length(point["length"], point["width"], max(tile.block_t, 16))
    live = point["width"] if length is None else max(0, min(length, point["width"]))
    bytewise = 1.7 if unaligned(point) else 1.0
    if impl == "serial":
        return point["heads"] * (0.02 + bytewise * 0.008 * (live + point["extra"]))
    if impl == "simt":
        return point["heads"] * (0.02 + bytewise * 0.012 * (point["width"] + point["extra"]) / 16)
    groups = -(-point["heads"] // tile.block_h)
    tiles = -(-live // tile.block_t) + -(-point["extra"] // tile.block_t)
    if impl == "mma":
        return groups * bytewise * (0.05 + 0.06 * tiles)
    splits = num_splits or plan.num_splits
    return groups * bytewise * (0.04 * splits + 0.06 * tiles) + point["heads"] * 0.006


def cpu_points(limit: float = 0.42) -> tuple[list[dict], list[tuple]]:
    """A pairwise cover of the matrix for the interpreter, and the pairs that cost over `limit` seconds."""
    # 64 splits are 64 programs a row: the combine's own test has them. "auto" stands for planned splits.
    every = routes(cases.interpretable_impls())
    cheap = tuple(route for route in every if route not in (("split_k", 64), ("split_k", None)))
    factors = FACTORS | {"route": cheap}
    return covering(factors, cpu_seconds, limit)


def _cycle(**factors):
    """The full product of some factors, while the other ones walk through their values beside it."""
    others = {name: itertools.cycle(values) for name, values in {
        "sink": SINKS, "view": VIEWS, "scratch": SCRATCH, "extra": EXTRAS,
    }.items() if name not in factors}  # fmt: skip
    for values in itertools.product(*factors.values()):
        yield (
            DEFAULTS | {name: next(others[name]) for name in others} | dict(zip(factors, values, strict=True))
        )


def gpu_points(impls=IMPLS) -> list[tuple[str, dict, tuple]]:
    """(fault class, point, rows) of every call on a GPU; each call holds every pattern at every length."""
    every = routes(impls)
    kernels = tuple((impl, None) for impl in impls)
    plan = []
    for point in _cycle(width=WIDTHS, heads=HEADS, route=every, extra=(0,), view=("plain",)):
        plan.append(("index widths x heads x routes", point, ALL_ROWS))
    for point in _cycle(page=PAGES, stride=STRIDES, offset=OFFSETS, extra=(0, 65), route=kernels):
        plan.append(("page sizes, strides, offsets", point, ALL_ROWS))
    for point in _cycle(route=every, extra=EXTRAS, width=(65, 640), heads=(4, 64), scratch=SCRATCH):
        plan.append(("lengths x splits x caches", point, ALL_ROWS))
    for point in _cycle(route=every, sink=SINKS, extra=(0, 1), heads=(8, 64)):
        plan.append(("sinks", point, ALL_ROWS))
    for point in _cycle(route=every, view=VIEWS, heads=HEADS, width=(65, 192), extra=(0, 65)):
        plan.append(("views of larger buffers", point, ALL_ROWS))
    without = tuple((pattern, None) for pattern in cases.PATTERNS)
    for point in _cycle(route=every, width=WIDTHS, extra=(0, 192), heads=(12, 64)):
        plan.append(("no lengths", point, without))
    if "staged" in impls:
        plan += [("tiles of other kernels", point, rows) for point, rows in tile_points()]
    cover, _ = covering(FACTORS | {"route": every}, seed=1)
    for point in cover:
        plan.append(("pairwise over everything", point, ((point["pattern"], point["length"]),) * 3))
    return plan


def tile_points():
    """(point, rows) for the tiles of rung `staged`'s other kernels: a part of what every rung gets.

    Caches that are not aligned to 4 bytes are left out: rung `staged` refuses them before it has a tile.
    """
    routes, heads = tile_routes(), (20, 64)
    without = tuple((pattern, None) for pattern in cases.PATTERNS)
    aligned = tuple(offset for offset in OFFSETS if offset % 4 == 0)
    for point in _cycle(width=WIDTHS, heads=heads, route=routes, extra=(0,), view=("plain",)):
        yield point, ALL_ROWS
    words = tuple(stride for stride in STRIDES if stride != "odd")
    split = tile_routes((2,))
    for point in _cycle(page=(53,), stride=words, offset=aligned, extra=(0, 65), heads=(64,), route=split):
        yield point, ALL_ROWS
    for point in _cycle(route=tile_routes((1, 2, 64)), extra=EXTRAS, width=(65, 640), heads=(64,)):
        yield point, ALL_ROWS
    for point in _cycle(route=routes, sink=SINKS, extra=(0, 1), heads=(64,)):
        yield point, ALL_ROWS
    for point in _cycle(route=split, view=VIEWS, heads=heads, width=(65, 192), extra=(0, 65)):
        yield point, ALL_ROWS
    for point in _cycle(route=routes, width=WIDTHS, extra=(0, 192), heads=(64,)):
        yield point, without


def _share(point) -> int:
    """The share that a kernel is compiled for: a wide tile's units, 0 for a loop."""
    name, splits = point["route"]
    tile = cases.OTHER_KERNELS.get(name)
    if tile is None or not tile.wide:
        return 0
    units = -(-point["width"] // WIDE_UNIT) - (-point["extra"] // WIDE_UNIT)
    share = -(-units // (splits or 2))
    return share if share <= WIDE_SHARE else 0


def _compiles_alike(entry) -> tuple:
    """Sorts together the calls that share compiled kernels."""
    _, point, rows = entry
    width, heads = point["width"], point["heads"]
    return (
        point["route"][0], point["route"][0] in cases.OTHER_KERNELS and point["route"][1] == 1,
        point["page"], point["extra"] > 0,
        unaligned(point),
        heads <= 16, rows[0][1] is None, point["sink"] is None, width == 1, width % 16 == 0, heads == 1,
        heads % 16 == 0, _share(point), repr(point),
    )  # fmt: skip


def groups_of(entries) -> list[list[tuple[int, tuple]]]:
    """(number, entry) of every call, those that compile alike together. The number is the call's seed, too."""
    numbered = list(enumerate(sorted(entries, key=_compiles_alike)))
    grouped = itertools.groupby(numbered, key=lambda item: _compiles_alike(item[1])[:-1])
    return [list(group) for _, group in grouped]


def main(device: str, folder: str) -> None:
    """Run the groups that no other process has claimed, and write a line of JSON about each."""
    entries = gpu_points(cases.interpretable_impls() if device == "cpu" else IMPLS)
    with open(Path(folder) / f"{os.getpid()}.jsonl", "a") as file:
        for number, group in enumerate(groups_of(entries)):
            try:
                (Path(folder) / f"{number}.claim").touch(exist_ok=False)
            except FileExistsError:
                continue
            print(json.dumps(_run_group(group, device)), file=file, flush=True)


def _run_group(group, device: str) -> dict:
    calls, rows_run, failures = Counter(), Counter(), []
    for number, (fault_class, point, rows) in group:
        live = 4096 if point["width"] > 640 else 512
        try:
            found = run(point, rows, device=device, live=live, seed=number)
        except Exception:
            found = [traceback.format_exc(limit=3)]
        calls[fault_class] += 1
        rows_run[fault_class] += len(rows)
        if found:
            failures.append({"class": fault_class, "point": repr(point), "found": found})
    return {"calls": calls, "rows": rows_run, "failures": failures}


def gather(folder) -> tuple[Counter, Counter, list[dict]]:
    """Calls and rows by fault class, and the failures, of what every process has finished so far."""
    calls, rows, failures = Counter(), Counter(), []
    for path in Path(folder).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            result = json.loads(line)
            calls.update(result["calls"])
            rows.update(result["rows"])
            failures += result["failures"]
    return calls, rows, failures


def wait_for(processes: list[subprocess.Popen], seconds: float) -> list[int | None]:
    """Exit codes of processes that had `seconds` together; those still running are ended: None."""
    deadline = time.monotonic() + seconds
    codes = []
    try:
        for process in processes:
            try:
                codes.append(process.wait(timeout=max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return codes


if __name__ == "__main__":
    main(*sys.argv[1:])
