"""Reads measured rows, fits and judges the launch model on them, and writes what the chapters read.

`data/model_validation.csv` has one row a point that was judged: utc, run_id, device, target, impl, the tile,
batch, heads, topk, extra_topk, num_splits, scratch_bytes, measured_us, predicted_us, error (predicted over
measured, less one), split ("fit" or "holdout"), bound (the term that sets the predicted time) and unseen_us (what
a fit predicts that saw no point of this rung and tile). The fitted constants go into `data/model_parameters.csv`.
"""

import csv
import json
from dataclasses import asdict
from pathlib import Path

from kernels.lab import launch_model, predict, predict_fit
from kernels.lab.devices import device_of
from kernels.sparse_mla.tiles import Tile

TILE = ("block_h", "block_t", "num_warps", "num_stages", "wgmma", "producer_warps")
SHAPE = ("batch", "heads", "topk", "extra_topk", "num_splits", "scratch_bytes")
COLUMNS = ("utc", "run_id", "device", "target", "impl", *TILE, *SHAPE)
COLUMNS += ("measured_us", "predicted_us", "error", "split", "bound", "unseen_us")


def read_rows(path: Path) -> list[dict]:
    """Measured rows from a file: measurements.csv's columns, or the timings of `tune` as JSON lines.

    Raises:
        ValueError: neither of the two.
    """
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix != ".jsonl":
        raise ValueError(
            f"--rows: got {path.name!r}, accepted are .csv (measurements) and .jsonl (timings of tune)"
        )
    rows = []
    for line in path.read_text().splitlines():
        timing = json.loads(line)
        row = {"op": "sparse_mla_decode", "impl": "staged", "status": "ok", "timer": "chain"}
        row |= asdict(Tile(*timing["tile"]))
        row |= {name: timing[name] for name in ("batch", "heads", "num_splits")}
        rows.append(row | {"topk": timing["candidates"], "median_us": timing["us"]})
    return rows


def recorded_rows(device) -> tuple[list[dict], dict]:
    """Rows of sparse MLA decode of the newest recorded run on a device that has some, and its run.json.

    A complete run comes before one of a few experiments, which has few shapes to fit.

    Raises:
        ValueError: no such run.
    """
    from kernels.lab.records import store

    runs = store.load_all(device=device_of(device).name)
    for record in sorted(runs, key=lambda record: not record.info["complete"]):
        table = record.table("measurements")
        rows = table[table["op"] == "sparse_mla_decode"]
        if len(rows):
            return rows.to_dict("records"), record.info
    name = device_of(device).name
    raise ValueError(f"device: no recorded run of sparse MLA decode on {name} in data/runs; give --rows")


def _key(row: dict) -> str:
    return json.dumps([row["impl"], row["tile"], *(row[name] for name in SHAPE)], sort_keys=True)


def table(fit: predict_fit.Fit, unseen, device, utc: str, run_id: str) -> list[dict]:
    """The rows of `data/model_validation.csv` for one fit, in a fixed order.

    unseen: the `Validation` of `predict_fit.unseen`, or None.
    """
    device = device_of(device)
    apart = {_key(row): row["predicted_us"] for row in (unseen.rows if unseen else [])}
    head = {"utc": utc, "run_id": run_id, "device": device.key, "target": device.target.name}
    rows = []
    for split, validation in (("fit", fit.fitted), ("holdout", fit.held_out)):
        for row in validation.rows:
            tile = {name: int(row["tile"].get(name, 0)) for name in TILE}
            times = {"measured_us": f"{row['measured_us']:.3f}", "predicted_us": f"{row['predicted_us']:.3f}"}
            shape = {name: row[name] for name in SHAPE}
            judged = {"error": f"{row['error']:.4f}", "split": split, "bound": row["bound"]}
            judged["unseen_us"] = f"{apart[_key(row)]:.3f}" if _key(row) in apart else ""
            rows.append(head | {"impl": row["impl"]} | tile | shape | times | judged)
    order = ("impl", *TILE, *SHAPE)
    return sorted(rows, key=lambda row: tuple(row[name] for name in order))


def write(rows: list[dict], path: Path | None = None) -> None:
    """Write the validated points."""
    with (path or predict.VALIDATION).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_parameters(fitted: dict[str, float], path: Path | None = None) -> None:
    """Put fitted values into the table of parameters; everything else in it stays as it is."""
    path = path or launch_model.PARAMETERS
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        names, rows = reader.fieldnames, list(reader)
    for row in rows:
        if row["fitted"] == "1" and row["parameter"] in fitted:
            row["value"] = f"{fitted[row['parameter']]:.4g}"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def known(value) -> bool:
    """Whether a field of the table holds a number: not empty, not NaN."""
    return value not in ("", None) and value == value


def summary(rows: list[dict]) -> list[dict]:
    """How good the model is: split, impl ("all" too), count, median_error, p90_error, spearman.

    A third split, "unseen", judges each kernel by a fit on the others.
    """
    found = []
    apart = [
        row | {"split": "unseen", "predicted_us": row["unseen_us"]} for row in rows if known(row["unseen_us"])
    ]
    for split in ("holdout", "unseen", "fit"):
        here = [row for row in (*rows, *apart) if row["split"] == split]
        for impl in ("all", *dict.fromkeys(row["impl"] for row in here)):
            pairs = [
                (float(row["measured_us"]), float(row["predicted_us"]))
                for row in here
                if impl in ("all", row["impl"])
            ]
            if pairs:
                found.append({"split": split, "impl": impl} | predict_fit.judge(pairs))
    return found
