"""Judges the launch model against measured times, and fits its free constants, on different points.

Times are compared by ratio: an error is |predicted / measured - 1|. A fit never sees the points it is judged
on: `split` shares points out by a hash of their configuration, so the same point always falls on the same
side.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from kernels.lab.devices import device_of
from kernels.lab.launch_model import parameter_table, parameters_of
from kernels.lab.predict import ATTENTION, Point, compile_points, point, predict_compiled


@dataclass(frozen=True)
class Validation:
    """How far predictions are from measurements.

    Attributes:
        count: points. median_error, p90_error: of |predicted / measured - 1|. spearman: rank correlation.
        rows: one a point, worst first: configuration, measured_us, predicted_us, error, bound.
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
    return default if value is None or value == "" or value != value else int(value)


def points_of(measurements) -> list[tuple[Point, float]]:
    """(point, median_us) of the rows that a model of sparse MLA decode can judge: status ok, a rung of ours.

    Args:
        measurements: DataFrame or list of mappings with the columns of measurements.csv. Rows timed in a
            chain are taken where the column `timer` exists: other timers add launch costs of the host.
    """
    rows = measurements.to_dict("records") if hasattr(measurements, "to_dict") else list(measurements)
    found = []
    for row in rows:
        usable = (
            row.get("op") == "sparse_mla_decode"
            and row.get("impl") in ATTENTION
            and row.get("status") == "ok"
        )
        if not usable or row.get("timer", "chain") != "chain":
            continue
        tile = {name: _number(row, name, 1) for name in ("block_h", "block_t", "num_warps", "num_stages")}
        splits = _number(row, "num_splits", 1) if row["impl"] == "split_k" else 1
        shape = {"heads": _number(row, "heads", 64), "topk": _number(row, "topk", 512)}
        swa = _number(row, "swa_tokens", 0)
        asked = point(row["impl"], tile, int(row["batch"]), **shape, extra_topk=swa, num_splits=splits)
        found.append((asked, float(row["median_us"])))
    return found


def spearman(left, right) -> float:
    """Rank correlation of two equally long lists, ties given their mean rank."""
    import pandas as pd

    return float(pd.Series(list(left)).rank().corr(pd.Series(list(right)).rank()))


def _judge(points, compiled, device, parameters) -> Validation:
    import numpy as np

    rows = []
    for (asked, measured), code in zip(points, compiled, strict=True):
        predicted = predict_compiled(asked, code, device, parameters)
        row = asdict(asked) | {
            "measured_us": measured,
            "predicted_us": predicted.us,
            "bound": predicted.bound,
        }
        rows.append(row | {"error": abs(predicted.us / measured - 1)})
    errors = [row["error"] for row in rows]
    rank = (
        spearman([r["measured_us"] for r in rows], [r["predicted_us"] for r in rows])
        if len(rows) > 1
        else math.nan
    )
    return Validation(
        len(rows),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        rank,
        sorted(rows, key=lambda row: -row["error"]),
    )


def _compiled_points(measurements, device):
    points = points_of(measurements)
    if not points:
        raise ValueError(
            "measurements: no row has op sparse_mla_decode, a rung of ours, status ok and timer chain"
        )
    compiled = compile_points([asked for asked, _ in points], device)
    usable = [(p, c) for p, c in zip(points, compiled, strict=True) if all(one.ok for one in c)]
    return [p for p, _ in usable], [c for _, c in usable]


def validate(measurements, device="h200", parameters: dict[str, float] | None = None) -> Validation:
    """Judge predictions against measurements.

    Args:
        measurements: as for `points_of`, from one device.
        device: that device's key. parameters: constants to judge; those of `data/model_parameters.csv`
            without.

    Raises:
        ValueError: no usable row.
    """
    points, compiled = _compiled_points(measurements, device)
    return _judge(points, compiled, device_of(device), parameters)


def held_out(asked: Point, share: float = 0.5) -> bool:
    """Whether a point is judged on (and never fitted on), by a hash of its configuration."""
    text = json.dumps(asdict(asked), sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8 < share


def free_parameters() -> dict[str, tuple[float, float]]:
    """The constants that a fit may move, with their bounds."""
    return {row["parameter"]: (row["low"], row["high"]) for row in parameter_table() if row["fitted"]}


def fit(measurements, device="h200", share: float = 0.5, rounds: int = 6, seed_parameters=None) -> Fit:
    """Fit the free constants on a part of the points, judge on the rest.

    Coordinate search: each constant in turn tries steps that shrink from round to round, within its bounds; a
    step stays if the mean absolute logarithm of predicted over measured falls. Few constants, no gradients,
    and the same result every time.

    Args:
        share: part of the points that is held out.

    Raises:
        ValueError: no usable row, or one side of the split is empty.
    """
    device = device_of(device)
    points, compiled = _compiled_points(measurements, device)
    sides: dict[bool, tuple[list, list]] = {True: ([], []), False: ([], [])}
    for one, code in zip(points, compiled, strict=True):
        side = sides[held_out(one[0], share)]
        side[0].append(one)
        side[1].append(code)
    if not sides[True][0] or not sides[False][0]:
        raise ValueError(f"share: {share} of {len(points)} points leaves one side empty; measure more points")
    parameters = parameters_of(device.target.name) | (seed_parameters or {})

    def cost(candidate: dict[str, float]) -> float:
        total = 0.0
        for (asked, measured), code in zip(*sides[False], strict=True):
            total += abs(math.log(predict_compiled(asked, code, device, candidate).us / measured))
        return total / len(sides[False][0])

    best = cost(parameters)
    for round_number in range(rounds):
        step = 1 + 1.0 / 2**round_number
        for name, (low, high) in free_parameters().items():
            for factor in (step, 1 / step):
                candidate = parameters | {name: min(max(parameters[name] * factor, low), high)}
                value = cost(candidate)
                if value < best - 1e-9:
                    parameters, best = candidate, value
    return Fit(
        parameters, _judge(*sides[False], device, parameters), _judge(*sides[True], device, parameters)
    )
