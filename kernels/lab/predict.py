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
from kernels.sparse_mla.launch import COMBINE_CHUNK, COMBINE_WARPS
from kernels.sparse_mla.tiles import Tile

VALIDATION = Path(__file__).resolve().parents[2] / "data" / "model_validation.csv"
ATTENTION = ("serial", "simt", "mma", "split_k", "staged")
SPLITTING = ("split_k", "staged")
PER_HEAD = ("serial", "simt")
COMBINE_TILE = {"block_h": 1, "block_t": 1, "num_warps": COMBINE_WARPS, "num_stages": 1}
# (L2, DRAM) loads of a pass, one after the other, that nothing hides. The head-shared rungs fetch a tile ahead.
# `serial` finds its index in L1, where the token before it brought it. Producers have nothing else to do while a
# tile's bytes are on their way.
PASS_LOADS = {"serial": (0, 1), "simt": (1, 1)}
PRODUCER_LOADS = (0, 1)


@dataclass(frozen=True)
class Point:
    """One measured or asked-for configuration of sparse MLA decode; every head and candidate is live.

    Attributes:
        impl: rung. tile: block_h, block_t, num_warps, num_stages by name; for `staged` wgmma, and producer_warps
            where there are any.
        batch, heads, topk, extra_topk: shape; `extra_topk` entries come from a second cache.
        num_splits: of the rungs split_k and staged. scratch_bytes: 2 or 4 a partial value.
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

    @property
    def combines(self) -> bool:
        """Whether a second launch merges partial outputs: `staged` writes the result itself with one split."""
        return self.impl == "split_k" or (self.impl == "staged" and self.num_splits > 1)

    def requests(self, target: str) -> list:
        """The kernels of this point as compile requests: the attention kernel, and combine where it is launched.

        Sizes that give the same machine code are asked for as one: Triton specialises integers by whether they
        are 1 or a multiple of 16, and `staged` by whether there is one split.
        """
        options = {"heads": _like(self.heads, 64), "topk": _like(self.topk, 512)}
        dtype = {2: "bfloat16", 4: "float32"}[self.scratch_bytes]
        if self.extra_topk:
            options["extra_topk"] = _like(self.extra_topk, 512)
        if self.impl == "staged":
            options["num_splits"] = 8 if self.combines else 1
        if self.combines:
            options["scratch_dtype"] = dtype
        result = [make_request("sparse_mla", self.impl, self.tile, target, **options)]
        if self.combines:
            more = {"heads": options["heads"], "num_splits": self.num_splits, "scratch_dtype": dtype}
            result.append(make_request("sparse_mla", "combine", COMBINE_TILE, target, **more))
        return result


def _like(size: int, usual: int) -> int:
    return usual if size % 16 == 0 else size


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
        ValueError: an unknown rung, a size below 1, splits on a rung that has none, or a tile that is no loop.
    """
    if impl not in ATTENTION:
        raise ValueError(f"impl: got {impl!r}, accepted are {ATTENTION}")
    sizes = {"batch": batch, "heads": heads, "topk": topk, "num_splits": num_splits}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}: got {value}, accepted is 1 or more")
    if num_splits > 1 and impl not in SPLITTING:
        raise ValueError(
            f"num_splits: got {num_splits} for {impl!r}, accepted is 1; only {SPLITTING} split a row"
        )
    if scratch_bytes not in (2, 4):
        raise ValueError(f"scratch_bytes: got {scratch_bytes}, accepted are 2 and 4")
    tile = asdict(tile) if is_dataclass(tile) else dict(tile)
    if impl == "staged":
        tile.setdefault("wgmma", False)
        if Tile(**tile).wide or Tile(**tile).few:
            raise ValueError(
                f"tile: got {tile}, the model describes no wide tiles, whose short shares are no loop, and none "
                f"for few heads, whose rows come by copies"
            )
    else:
        tile.pop("wgmma", None)
    if not tile.get("producer_warps"):
        tile.pop("producer_warps", None)
    elif impl != "staged":
        raise ValueError(
            f"tile: producer_warps={tile['producer_warps']} for {impl!r}, accepted is 0; only 'staged' has producers"
        )
    return Point(impl, tile, batch, heads, topk, extra_topk, num_splits, scratch_bytes)


def planned_point(batch: int, heads: int = 64, topk: int = 512, *, device="rtx-pro-6000", **how) -> Point:
    """The `Point` that the planner would run on a device; `how` are further arguments of `plan`, such as impl."""
    from kernels.sparse_mla import plan as planning

    device = device_of(device)
    facts = device.target
    card = planning.Device(device["sm_count"], facts.capability, facts.shared_optin)
    chosen = planning.plan(batch, heads, topk, device=card, **how)
    return point(chosen.impl, chosen.tile, batch, heads, topk, num_splits=chosen.num_splits)


def _loop(compiled: Compiled):
    return compiled.main_loop.counts if compiled.main_loop else None


def unrolled(compiled: Compiled) -> int:
    """Tiles that one pass through the main loop handles: 1, or more where the compiler unrolled it.

    What a tile cannot do without bounds them: its entries must be loaded, each score needs an exponential, and
    each product its tensor operations. Replicated work only raises a count, so the pass holds as many tiles as
    the scarcest count allows.
    """
    loop = _loop(compiled)
    if loop is None or not compiled.block_t:
        return 1
    warps, rows = compiled.main_warps, compiled.block_h or 1
    fetching, fetchers = loop, warps
    if compiled.producer_loop is not None:
        fetching, fetchers = compiled.producer_loop.counts, compiled.producer_warps
    loads = sum(fetching.bytes_of(name) for name in ("global_load", "async_copy")) * fetchers
    single = 32 * warps * loop.widths.get("global_load", {}).get(1, 0)
    bounds = [loads / (576 * compiled.block_t), 32 * warps * loop["special"] / (rows * compiled.block_t)]
    if loop.tensor_flops:
        bounds.append(loop.tensor_flops * warps / (4 * 512 * max(rows, 16) * compiled.block_t))
    elif single:
        # The per-head rungs read the 448 e4m3 numbers of an entry byte by byte
        bounds.append(single / (448 * compiled.block_t))
    return max(1, int(min(bounds)))


def tensor_efficiency(compiled: Compiled) -> float | None:
    """Useful over issued tensor operations of the main loop: below 1 where warps repeat scores."""
    loop = _loop(compiled)
    if loop is None or not loop.tensor_flops or not compiled.block_t:
        return None
    useful = 4 * 512 * compiled.block_h * compiled.block_t * unrolled(compiled)
    return useful / (loop.tensor_flops * compiled.main_warps)


def launches(point: Point, compiled: list[Compiled]) -> list[Launch]:
    """The launches of a point, with grids, passes and bytes; `compiled` answers `point.requests`."""
    work = roofline.attention(point.batch, point.heads, point.candidates)
    block_h, block_t = (1 if point.impl in PER_HEAD else point.tile["block_h"]), point.tile["block_t"]
    groups = -(-point.heads // block_h)
    tiles = -(-point.topk // block_t) + -(-point.extra_topk // block_t)
    # A split beyond the last tile is a block that ends at once and leaves no partial output
    splits = min(point.num_splits, tiles)
    a_pass = unrolled(compiled[0])
    requested = roofline.requested_kv_bytes(point.batch, point.heads, point.candidates, block_h)
    written = work.parts["output"] + work.parts["lse"]
    read = work.bytes - written
    if point.combines:
        # Scratch is small enough to stay in L2: it counts there, not in DRAM.
        scratch = sum(roofline.scratch(point.batch, point.heads, splits, point.scratch_bytes).values())
    pdl = point.impl in SPLITTING and device_target_overlaps(compiled[0].target)
    tensor = compiled[0].counts["tensor"] > 0
    result = [
        Launch(
            compiled[0],
            point.batch * groups * splits,
            -(-tiles // splits) / a_pass,
            read if point.combines else work.bytes,
            requested + read - work.parts["kv"],
            scratch if point.combines else written,
            # Scores add up 512 / 16 products one after the other, or in several sums; the output BLOCK_T / 16
            tensor_chain=512 // 16 // score_sums(point) + max(block_t // 16, 1) if tensor else 0,
            pass_loads=PRODUCER_LOADS if compiled[0].producer_warps else PASS_LOADS.get(point.impl, (0, 0)),
            end_loads=(1, 1),
            overlapped=pdl,
            mean_passes=tiles / splits / a_pass,
        )
    ]
    if point.combines:
        rounds = -(-point.num_splits // COMBINE_CHUNK)
        # A chunk's LSEs and partial outputs are on their way together
        result.append(
            Launch(
                compiled[1], point.batch * point.heads, rounds, written, scratch, written,
                pass_loads=(1, 0), end_loads=(1, 0), overlapped=pdl,
            )
        )  # fmt: skip
    return result


def score_sums(point: Point) -> int:
    """Sums that a tile's scores are added up in, next to one another."""
    if point.impl != "staged" or point.tile.get("wgmma"):
        return 1
    return 4 if point.tile["block_h"] < 64 else 2


def device_target_overlaps(target: str) -> bool:
    """Whether a target has programmatic dependent launch: sm_90 and later."""
    return int(target.removeprefix("sm_")) >= 90


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
    """The prediction for a point whose kernels are at hand, with its band.

    The band holds nine tenths of the held-out points. For a device that nobody measured, whose machine code the fit
    cannot have seen, it is the wider one of kernels left out of the fit.
    """
    device = device_of(device)
    found = chain([predict_launch(launch, device, parameters) for launch in launches(point, compiled)])
    record = validation_of(device.target.name)
    if record is None:
        return found
    own = record["device"] == device.key
    error, count = (
        (record["p90_error"], record["count"]) if own else (record["unseen_p90"], record["unseen_count"])
    )
    which = "held-out points" if own else "points of kernels that the fit had not seen"
    said = f"judged on {record['device']}: 90 % of {count} {which} within {100 * error:.0f} %"
    said += "" if own else ", transferred to another device"
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


@lru_cache
def _summary(path: Path, target: str) -> dict | None:
    from kernels.lab.predict_fit import judge

    rows = [row for row in _validation_rows(path) if row["split"] == "holdout"]
    if not rows:
        return None
    newest = max(rows, key=lambda row: (row["target"] == target, row["utc"]))
    rows = [row for row in rows if (row["device"], row["utc"]) == (newest["device"], newest["utc"])]
    found = judge([(float(row["measured_us"]), float(row["predicted_us"])) for row in rows])
    same = [r for r in _validation_rows(path) if (r["device"], r["utc"]) == (newest["device"], newest["utc"])]
    apart = [(float(r["measured_us"]), float(r["unseen_us"])) for r in same if r["unseen_us"]]
    wider = judge(apart) if apart else found
    found |= {
        "unseen_count": wider["count"],
        "unseen_median": wider["median_error"],
        "unseen_p90": max(wider["p90_error"], found["p90_error"]),
    }
    return {name: newest[name] for name in ("utc", "run_id", "device", "target")} | found


def validation_of(target: str) -> dict | None:
    """How good the model is on held-out points of a target, else of the newest device judged; None without.

    Read from `data/model_validation.csv`, which `python -m kernels.lab validate` writes.

    Returns:
        utc, run_id, device, target, count, median_error, p90_error, spearman; unseen_count, unseen_median and
        unseen_p90 for kernels that were left out of the fit.
    """
    return _summary(VALIDATION, target)


def __getattr__(name: str):
    """`validate` and `fit` live in `kernels.lab.predict_fit`, which imports this module."""
    if name in ("validate", "fit", "Validation", "Fit"):
        from kernels.lab import predict_fit

        return getattr(predict_fit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
