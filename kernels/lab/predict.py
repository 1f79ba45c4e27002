"""Predicts the time of an operator's launches on a device, and judges predictions against measurements.

    predict_attention("split_k", Tile(16, 32, 8), batch=1, device="rtx-pro-6000", num_splits=8).us

The equations are in `kernels.lab.launch_model`. `fit` sets its free constants on some measured points,
`validate` judges on others, and a prediction then carries the band that `data/model_validation.csv` holds.
Without such a record its band is None and its evidence says "not validated".
"""

import csv
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import lru_cache
from pathlib import Path

from kernels.lab import roofline
from kernels.lab.compile import Compiled, compile_many, make_request
from kernels.lab.devices import device_of
from kernels.lab.launch_model import Launch, Prediction, chain, predict_launch

VALIDATION = Path(__file__).resolve().parents[2] / "data" / "model_validation.csv"
ATTENTION = ("serial", "simt", "mma", "split_k")
COMBINE_TILE = {"block_h": 1, "block_t": 1, "num_warps": 4, "num_stages": 1}


@dataclass(frozen=True)
class Point:
    """One measured or asked-for configuration of sparse MLA decode; every head and candidate is live.

    Attributes:
        impl: rung. tile: block_h, block_t, num_warps, num_stages by name.
        batch, heads, topk, extra_topk: shape; `extra_topk` entries come from a second cache.
        num_splits: of the rung split_k. scratch_bytes: 2 or 4 a partial value.
    """

    impl: str
    tile: dict
    batch: int
    heads: int = 64
    topk: int = 512
    extra_topk: int = 0
    num_splits: int = 1
    scratch_bytes: int = 2

    @property
    def candidates(self) -> int:
        return self.topk + self.extra_topk

    def requests(self, target: str) -> list:
        """The kernels of this point as compile requests: the attention kernel, and combine for split_k."""
        options = {"heads": self.heads, "topk": self.topk}
        if self.extra_topk:
            options["extra_topk"] = self.extra_topk
        result = [make_request("sparse_mla", self.impl, self.tile, target, **options)]
        if self.impl == "split_k":
            dtype = {2: "bfloat16", 4: "float32"}[self.scratch_bytes]
            more = {"heads": self.heads, "num_splits": self.num_splits, "scratch_dtype": dtype}
            result.append(make_request("sparse_mla", "combine", COMBINE_TILE, target, **more))
        return result


def point(
    impl: str,
    tile,
    batch: int,
    heads: int = 64,
    topk: int = 512,
    extra_topk: int = 0,
    num_splits: int = 1,
    scratch_bytes: int = 2,
) -> Point:
    """A checked `Point`; `tile` is a mapping or a dataclass.

    Raises:
        ValueError: an unknown rung, a size below 1, or splits on a rung that has none.
    """
    if impl not in ATTENTION:
        raise ValueError(f"impl: got {impl!r}, accepted are {ATTENTION}")
    sizes = {"batch": batch, "heads": heads, "topk": topk, "num_splits": num_splits}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}: got {value}, accepted is 1 or more")
    if num_splits > 1 and impl != "split_k":
        raise ValueError(
            f"num_splits: got {num_splits} for {impl!r}, accepted is 1; only split_k splits a row"
        )
    if scratch_bytes not in (2, 4):
        raise ValueError(f"scratch_bytes: got {scratch_bytes}, accepted are 2 and 4")
    tile = asdict(tile) if is_dataclass(tile) else dict(tile)
    return Point(impl, tile, batch, heads, topk, extra_topk, num_splits, scratch_bytes)


def unrolled(compiled: Compiled) -> int:
    """Tiles that one pass through the main loop handles: 1, or more where a `tl.dot` loop was unrolled.

    The products of a tile are known, so the pass's tensor operations tell. Warps beyond the tokens of a tile
    repeat the scores of others, which the count allows for. Loops without tensor instructions count as 1.
    """
    loop = compiled.main_loop
    if loop is None or not loop.counts.tensor_flops or not compiled.block_t:
        return 1
    rows, warps = max(compiled.block_h, 16), compiled.max_threads // 32
    one = 2 * rows * compiled.block_t * 512
    places = (rows // 16) * max(compiled.block_t // 8, 1)
    expected = one * (1 + max(1, warps / places))
    return max(1, round(loop.counts.tensor_flops * warps / expected))


def tensor_efficiency(compiled: Compiled) -> float | None:
    """Useful over issued tensor operations of the main loop: below 1 where warps repeat scores."""
    if compiled.main_loop is None or not compiled.main_loop.counts.tensor_flops or not compiled.block_t:
        return None
    useful = 4 * 512 * compiled.block_h * compiled.block_t * unrolled(compiled)
    return useful / (compiled.main_loop.counts.tensor_flops * compiled.max_threads / 32)


def launches(point: Point, compiled: list[Compiled]) -> list[Launch]:
    """The launches of a point, with grids, passes and bytes; `compiled` answers `point.requests`."""
    work = roofline.attention(point.batch, point.heads, point.candidates)
    block_h, block_t = (
        (1, point.tile["block_t"])
        if point.impl in ("serial", "simt")
        else (point.tile["block_h"], point.tile["block_t"])
    )
    groups = -(-point.heads // block_h)
    tiles = -(-point.topk // block_t) + -(-point.extra_topk // block_t)
    passes = -(-tiles // point.num_splits) / unrolled(compiled[0])
    requested = roofline.requested_kv_bytes(point.batch, point.heads, point.candidates, block_h)
    scratch = roofline.scratch(point.batch, point.heads, point.num_splits, point.scratch_bytes)
    split = point.impl == "split_k"
    moved = work.bytes if not split else work.bytes - work.parts["output"] - work.parts["lse"]
    written = sum(scratch.values()) if split else 0
    chain_length = 512 // 16 + max(block_t // 16, 1) if compiled[0].counts["tensor"] else 0
    # Scratch is small enough to stay in L2: it counts there, not in DRAM.
    others = moved - work.parts["kv"] + written
    result = [
        Launch(
            compiled[0],
            point.batch * groups * point.num_splits,
            passes,
            moved,
            requested + others,
            chain_length,
        )
    ]
    if split:
        combine = roofline.combine(point.batch, point.heads, point.num_splits, point.scratch_bytes)
        passes = -(-point.num_splits // 8)
        output = combine.parts["output"] + combine.parts["lse"]
        result.append(
            Launch(compiled[1], point.batch * point.heads, passes, output, combine.bytes, first=False)
        )
    return result


def predict_points(
    points: list[Point], device, parameters: dict[str, float] | None = None
) -> list[Prediction]:
    """Predictions for many points; their kernels are compiled together.

    Raises:
        ValueError: a kernel does not compile for the device's target, or does not fit it.
    """
    device = device_of(device)
    return [
        predict_compiled(p, c, device, parameters)
        for p, c in zip(points, compile_points(points, device), strict=True)
    ]


def compile_points(points: list[Point], device) -> list[list[Compiled]]:
    """The kernels of points for a device, in one parallel compilation."""
    target = device_of(device).target.name
    requests = [p.requests(target) for p in points]
    results = iter(compile_many([r for group in requests for r in group]))
    return [[next(results) for _ in group] for group in requests]


def predict_compiled(point: Point, compiled: list[Compiled], device, parameters=None) -> Prediction:
    """The prediction for a point whose kernels are at hand."""
    device = device_of(device)
    found = chain([predict_launch(launch, device, parameters) for launch in launches(point, compiled)])
    record = validation_of(device.target.name)
    if record is None:
        return found
    error = record["p90_error"]
    said = f"predicted, validated on {record['device']}: "
    said += f"90 % of {record['count']} points within {100 * error:.0f} %"
    if record["device"] != device.key:
        said += ", transferred to another device"
    return replace(found, band=(found.us / (1 + error), found.us * (1 + error)), evidence=said)


def predict_attention(
    impl: str, tile, batch: int, device="rtx-pro-6000", *, parameters=None, **shape
) -> Prediction:
    """Time of one sparse MLA decode call; `shape` are further fields of `Point`, such as topk.

    Raises:
        ValueError: bad input, or a kernel that does not compile or fit.
    """
    return predict_points([point(impl, tile, batch, **shape)], device, parameters)[0]


@lru_cache
def _validation_rows(path: Path) -> tuple[dict, ...]:
    if not path.exists():
        return ()
    with path.open(newline="") as file:
        return tuple(csv.DictReader(file))


def validation_of(target: str) -> dict | None:
    """The validation record that a target's predictions may cite: its own, else the newest one; None without.

    `data/model_validation.csv` has columns utc, device, target, count, median_error, p90_error, spearman,
    run_id.
    """
    rows = sorted(_validation_rows(VALIDATION), key=lambda row: (row["target"] == target, row["utc"]))
    if not rows:
        return None
    row = rows[-1]
    return (
        row
        | {"count": int(row["count"])}
        | {n: float(row[n]) for n in ("median_error", "p90_error", "spearman")}
    )


def __getattr__(name: str):
    """`validate` and `fit` live in `kernels.lab.predict_fit`, which imports this module."""
    if name in ("validate", "fit", "Validation", "Fit"):
        from kernels.lab import predict_fit

        return getattr(predict_fit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
