"""Fits the launch model's free constants on one half of the measured points and judges it on the other.

Times are compared by ratio: an error is |predicted / measured - 1|. The halves are drawn by a hash of (rung,
tile, batch, topk): all split counts of such a group fall on the same side, and always on the same one.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cache

from kernels.lab.devices import device_of
from kernels.lab.launch_model import chain, parameter_table, parameters_of, predict_launch
from kernels.lab.predict import ATTENTION, SPLITTING, Point, compile_points, launches, point
from kernels.sparse_mla.tiles import Tile, choices

TILE = ("block_h", "block_t", "num_warps", "num_stages")


@dataclass(frozen=True)
class Validation:
    """How far predictions are from measurements.

    Attributes:
        count: points. median_error, p90_error: of |predicted / measured - 1|. spearman: rank correlation.
        rows: one a point, worst first: configuration, measured_us, predicted_us, error (signed), bound.
    """

    count: int
    median_error: float
    p90_error: float
    spearman: float
    rows: list[dict]

    def meets(self, median: float = 0.2, p90: float = 0.4, spearman: float = 0.9) -> bool:
        """Whether the model is as good as asked."""
        return self.median_error <= median and self.p90_error <= p90 and self.spearman >= spearman


@dataclass(frozen=True)
class Fit:
    """Fitted constants, with the judgement on the points they were fitted on and on those held out."""

    parameters: dict[str, float]
    fitted: Validation
    held_out: Validation


def _number(row, name: str, default: int) -> int:
    value = row.get(name)
    return default if value is None or value == "" or value != value else int(float(value))


@cache
def _whole_tile(sizes: tuple, tile_class: str) -> dict:
    """What a record does not say of a staged tile: wgmma, producer_warps and pair, as in the tuned table.

    Records hold the sizes of a tile alone; a class has no two tiles of the same sizes. Native tiles are Hopper's own,
    or on another card those of sm_120.
    """
    wanted = None
    for name in ("sm90", "sm120") if tile_class == "native" else ("sm120",):
        listed = {row.tile for row in choices() if row.device_class == name}
        found = [one for one in listed if tuple(getattr(one, n) for n in TILE) == sizes]
        if len(found) > 1:
            raise ValueError(f"tile: {sizes} stands for several tiles of {name}: {found}")
        if found:
            wanted = found[0]
            break
    tile = wanted or Tile(*sizes)
    return {name: getattr(tile, name) for name in ("wgmma", "producer_warps", "pair")}


def points_of(measurements) -> list[tuple[Point, float]]:
    """(point, median_us) of the rows that a model of sparse MLA decode can judge, each configuration once.

    Args:
        measurements: DataFrame or list of mappings with the columns of measurements.csv. A row counts with
            status ok, a rung of ours and, where the column exists, the timer `chain`: other timers add launch
            costs of the host. `auto` on a GPU is the rung `staged`. Rows whose candidates are not all live are
            left out, and those of wide tiles, whose short shares are no loop, and of tiles for few heads, whose rows
            come by copies. A configuration that several experiments timed counts with its median.
    """
    rows = measurements.to_dict("records") if hasattr(measurements, "to_dict") else list(measurements)
    found: dict[str, tuple[Point, list[float]]] = {}
    for row in rows:
        if row.get("op") != "sparse_mla_decode" or row.get("status") != "ok":
            continue
        impl, _, scratch = str(row.get("impl")).partition("_fp32")
        scratch_bytes = 4 if str(row.get("impl")).endswith("_fp32") else 2
        impl = "staged" if impl == "auto" else impl
        live = _number(row, "context", 1 << 30) >= _number(row, "topk", 512)
        if impl not in ATTENTION or row.get("timer", "chain") != "chain" or not live:
            continue
        tile = {name: _number(row, name, 1) for name in TILE}
        if impl == "staged":
            asked = row.get("wgmma")
            if asked is not None and asked == asked and asked != "":
                tile |= {"wgmma": str(asked) in ("True", "1", "true")}
                tile |= {"producer_warps": _number(row, "producer_warps", 0)}
            else:
                tile |= _whole_tile(tuple(tile.values()), row.get("tile_class", "native"))
            if Tile(**tile).wide or Tile(**tile).few:
                continue
        splits = _number(row, "num_splits", 1)
        if splits > 1 and impl not in SPLITTING:
            continue  # an experiment that splits a rung which cannot, by other means
        asked = point(
            impl,
            tile,
            int(row["batch"]),
            heads=_number(row, "heads", 64),
            topk=_number(row, "topk", 512),
            extra_topk=_number(row, "swa_tokens", 0),
            num_splits=splits,
            scratch_bytes=scratch_bytes,
        )
        key = json.dumps(asdict(asked), sort_keys=True)
        found.setdefault(key, (asked, []))[1].append(float(row["median_us"]))
    return [(asked, sorted(times)[len(times) // 2]) for asked, times in found.values()]


def spearman(left, right) -> float:
    """Rank correlation of two equally long lists, ties given their mean rank."""
    import pandas as pd

    return float(pd.Series(list(left)).rank().corr(pd.Series(list(right)).rank()))


def judge(pairs: list[tuple[float, float]]) -> dict:
    """count, median_error, p90_error and spearman of (measured, predicted) pairs."""
    import numpy as np

    errors = [abs(predicted / measured - 1) for measured, predicted in pairs]
    rank = spearman(*zip(*pairs, strict=True)) if len(pairs) > 1 else math.nan
    return {
        "count": len(pairs),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "spearman": rank,
    }


def _judge(points, prepared, device, parameters) -> Validation:
    rows = []
    for (asked, measured), group in zip(points, prepared, strict=True):
        predicted = chain([predict_launch(launch, device, parameters) for launch in group])
        row = asdict(asked) | {
            "measured_us": measured,
            "predicted_us": predicted.us,
            "error": predicted.us / measured - 1,
            "bound": predicted.bound,
        }
        rows.append(row)
    found = judge([(row["measured_us"], row["predicted_us"]) for row in rows])
    return Validation(**found, rows=sorted(rows, key=lambda row: -abs(row["error"])))


def _prepared(measurements, device):
    """Points whose kernels compile and fit, each with its launches."""
    points = points_of(measurements)
    if not points:
        raise ValueError(
            "measurements: no row has op sparse_mla_decode, a rung of ours, status ok and timer chain"
        )
    compiled = compile_points([asked for asked, _ in points], device)
    kept, prepared = [], []
    for one, code in zip(points, compiled, strict=True):
        if all(kernel.ok for kernel in code):
            group = launches(one[0], code)
            if all(launch.fit.blocks for launch in group):
                kept.append(one)
                prepared.append(group)
    return kept, prepared


def validate(measurements, device="h200", parameters: dict[str, float] | None = None) -> Validation:
    """Judge predictions against measurements.

    Args:
        measurements: as for `points_of`, from one device.
        device: that device's key. parameters: constants to judge; those of `data/model_parameters.csv`
            without.

    Raises:
        ValueError: no usable row.
    """
    points, prepared = _prepared(measurements, device)
    return _judge(points, prepared, device_of(device), parameters)


def held_out(asked: Point, share: float = 0.5) -> bool:
    """Whether a point is judged on (and never fitted on), by a hash of its rung, tile, batch and topk."""
    text = json.dumps([asked.impl, asked.tile, asked.batch, asked.topk], sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8 < share


def free_parameters() -> dict[str, tuple[float, float]]:
    """The constants that a fit may move, with their bounds."""
    return {row["parameter"]: (row["low"], row["high"]) for row in parameter_table() if row["fitted"]}


def kernel_of(asked: Point) -> str:
    """Rung and tile of a point as text: points that are equal here run the same attention kernel."""
    return json.dumps([asked.impl, asked.tile], sort_keys=True)


def weights(points: list[tuple[Point, float]]) -> list[float]:
    """1 / sqrt(points of the same rung and tile): a tile timed often does not drown the others."""
    kernels = [kernel_of(asked) for asked, _ in points]
    return [kernels.count(kernel) ** -0.5 for kernel in kernels]


def unseen(measurements, device="h200", seed_parameters=None, rounds: int = 8) -> Validation | None:
    """Judge each kernel by a fit on all others: what to expect of a tile that nobody has timed.

    Args:
        seed_parameters: where every fit starts, such as the parameters of `fit`.

    Returns:
        The judgement over all points, None where there is one kernel only.
    """
    device = device_of(device)
    points, prepared = _prepared(measurements, device)
    start = parameters_of(device.target.name) | (seed_parameters or {})
    kernels = [kernel_of(asked) for asked, _ in points]
    rows = []
    for kernel in dict.fromkeys(kernels):
        mine = [i for i, other in enumerate(kernels) if other == kernel]
        others = [i for i, other in enumerate(kernels) if other != kernel]
        if not others:
            return None
        values = _minimise([points[i] for i in others], [prepared[i] for i in others], device, start, rounds)
        rows += _judge([points[i] for i in mine], [prepared[i] for i in mine], device, values).rows
    found = judge([(row["measured_us"], row["predicted_us"]) for row in rows])
    return Validation(**found, rows=sorted(rows, key=lambda row: -abs(row["error"])))


def fit(
    measurements,
    device="h200",
    share: float = 0.5,
    rounds: int = 20,
    seed_parameters=None,
) -> Fit:
    """Fit the free constants on a part of the points, judge on the rest.

    Levenberg and Marquardt's steps on logarithms of constants and of times, reweighted towards the least sum of
    absolute errors, so that single odd points pull little. No random numbers: the same rows and start give the
    same fit.

    Args:
        share: part of the groups that is held out.

    Raises:
        ValueError: no usable row, or one side of the split is empty.
    """
    device = device_of(device)
    points, prepared = _prepared(measurements, device)
    sides: dict[bool, tuple[list, list]] = {True: ([], []), False: ([], [])}
    for one, group in zip(points, prepared, strict=True):
        side = sides[held_out(one[0], share)]
        side[0].append(one)
        side[1].append(group)
    if not sides[True][0] or not sides[False][0]:
        raise ValueError(f"share: {share} of {len(points)} points leaves one side empty; measure more points")
    start = parameters_of(device.target.name) | (seed_parameters or {})
    parameters = _minimise(*sides[False], device, start, rounds)
    return Fit(
        parameters, _judge(*sides[False], device, parameters), _judge(*sides[True], device, parameters)
    )


def _minimise(points, prepared, device, start: dict[str, float], rounds: int) -> dict[str, float]:
    import numpy as np

    bounds = free_parameters()
    names = list(bounds)
    low, high = np.log(np.array([bounds[name] for name in names])).T
    weight = np.array(weights(points))
    measured = np.log([us for _, us in points])

    def named(vector) -> dict[str, float]:
        return start | dict(zip(names, np.exp(vector).tolist(), strict=True))

    def residual(vector):
        values = named(vector)
        times = [sum(predict_launch(one, device, values).us for one in group) for group in prepared]
        return np.log(times) - measured

    def cost(off) -> float:
        return float((np.abs(off) * weight).sum())

    here = np.clip(np.log([start[name] for name in names]), low, high)
    off, damping = residual(here), 1e-2
    for _ in range(rounds):
        slopes = np.stack([(residual(here + 0.02 * unit) - off) / 0.02 for unit in np.eye(len(names))], 1)
        near = weight / np.maximum(np.abs(off), 0.03)
        normal, gradient = slopes.T @ (near[:, None] * slopes), slopes.T @ (near * off)
        scale = np.diag(normal) + 1e-6 * max(float(np.diag(normal).max()), 1e-12)
        for _ in range(8):
            step = np.clip(np.linalg.solve(normal + damping * np.diag(scale), -gradient), -0.7, 0.7)
            there = np.clip(here + step, low, high)
            new = residual(there)
            if cost(new) < cost(off) - 1e-6:
                here, off, damping = there, new, max(damping / 3, 1e-6)
                break
            damping *= 3
        else:
            break
    return named(here)
