"""The appendix on predictions: measured against predicted points, the worst misses, and the campaign's card."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kernels.lab import evidence as proof
from kernels.lab import launch_model, predict, validation
from kernels.lab.devices import device_of
from kernels.lab.evidence import Evidence
from kernels.lab.figures import not_recorded, style

CARD = "rtx-pro-6000"
RUNGS = ("simt", "mma", "split_k", "staged")
BATCHES = (1, 4, 16, 64)
PUBLISHED = Path(__file__).resolve().parents[3] / "data" / "published.csv"
COLUMNS = {
    "impl": "rung", "tile": "tile (heads × tokens, warps + producers)", "batch": "batch", "heads": "heads",
    "candidates": "candidates", "num_splits": "splits", "measured_us": "measured (µs)",
    "predicted_us": "predicted (µs)", "error": "error", "cause": "likely cause",
}  # fmt: skip


def points() -> tuple[pd.DataFrame, Evidence]:
    """The judged points of `data/model_validation.csv` with numbers as numbers, and where they were measured.

    Returns:
        columns of the file, and tile (in words), candidates, cause. No rows where the file does not exist.
    """
    if not predict.VALIDATION.exists():
        return pd.DataFrame(columns=[*validation.COLUMNS, "tile", "candidates", "cause"]), proof.missing(
            "python -m kernels.lab validate has not judged the model"
        )
    frame = pd.read_csv(predict.VALIDATION)
    sizes = frame[["block_h", "block_t", "num_warps", "producer_warps"]].to_numpy()
    frame["tile"] = [f"{h} × {t}, {w}" + (f" + {p}" if p else "") for h, t, w, p in sizes]
    frame["candidates"] = frame["topk"] + frame["extra_topk"]
    frame["cause"] = [cause(row) for row in frame.to_dict("records")]
    newest = frame.sort_values("utc").iloc[-1]
    device = device_of(newest["device"]).name
    return frame, Evidence(
        "recorded", device=device, date_utc=newest["utc"][:10], note="against the launch model"
    )


def cause(row: dict) -> str:
    """What the model is likely to have wrong at a point, from what it leaves out."""
    tiles = -(-row["topk"] // row["block_t"]) + -(-row["extra_topk"] // row["block_t"])
    if row["impl"] == "serial":
        return "one conflict factor for all 4-byte exchanges; a reduction's few words do not conflict"
    if row["num_splits"] > tiles:
        return "blocks without a tile are taken to cost nothing"
    if row["candidates"] <= 64:
        return "short: starts and ends, of which counts say least, are most of the time"
    if row["num_warps"] == 4 and row["error"] < 0:
        return "two blocks an SM disturb each other more than one queue says; bank conflicts of operands would do it"
    if row["impl"] == "staged" and row["block_t"] == 16 and row["error"] > 0:
        return "waits that follow one another in the model overlap in part"
    return "none known"


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """How good the model is by split and rung: split, impl, count, median_error, p90_error, spearman."""
    columns = ["split", "impl", "count", "median_error", "p90_error", "spearman"]
    table = pd.DataFrame(validation.summary(frame.to_dict("records")), columns=columns)
    if len(table):
        table["split"] = table["split"].map(
            {"holdout": "held out", "fit": "fitted on", "unseen": "kernel left out"}
        )
    return table


def scatter(frame: pd.DataFrame, evidence: Evidence) -> Figure:
    """Predicted over measured time, log-log: held-out points filled, points of the fit hollow, one colour a rung."""
    if frame.empty:
        return not_recorded(evidence, what="measured points for this model")
    band = judged(frame).iloc[0]["p90_error"]
    fig, ax = plt.subplots(figsize=(5.6, 5.2))
    both = frame[["measured_us", "predicted_us"]].to_numpy()
    line = np.array([both.min() / 1.4, both.max() * 1.4])
    ax.fill_between(line, line / (1 + band), line * (1 + band), color=style.RULE, alpha=0.5, linewidth=0)
    ax.plot(line, line, color=style.INK, linewidth=1)
    for impl, group in frame.groupby("impl", sort=False):
        mine = style.look(str(impl))
        for split, face in (("fit", "none"), ("holdout", mine.colour)):
            here = group[group["split"] == split]
            ax.plot(
                here["measured_us"], here["predicted_us"], linestyle="none", marker=mine.marker or "o",
                markeredgecolor=mine.colour, markerfacecolor=face, markersize=5.5, alpha=0.85,
                label=mine.label if split == "holdout" else None,
            )  # fmt: skip
    ax.set(xlim=line, ylim=line, xlabel="measured (µs)", ylabel="predicted (µs)")
    style.log_axis(ax, "both")
    ax.legend(loc="lower right", fontsize=9, title="filled: held out", title_fontsize=9)
    return style.finish(fig, evidence)


def worst(frame: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """The points furthest off, fitted or held out, with the likely cause."""
    order = frame["error"].abs().sort_values(ascending=False).index[:count]
    return frame.loc[order, [*COLUMNS]].reset_index(drop=True)


def constants() -> pd.DataFrame:
    """The model's constants: parameter, value, unit, how (fitted or given), source; flags are left out."""
    rows = [
        {"parameter": r["parameter"].replace("_", " "), "value": r["value"], "unit": r["unit"],
         "how": "fitted" if r["fitted"] else "given", "source": r["source"].removeprefix("fitted: ")}
        for r in launch_model.parameter_table() if r["unit"] != "flag"
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _row(impl: str, batch: int, asked, found) -> dict:
    low, high = found.band or (None, None)
    return {
        "impl": impl, "batch": batch, "splits": asked.num_splits, "median_us": found.us, "low": low, "high": high,
        "bound": found.bound, **{f"{name}_us": value for name, value in found.terms.items()},
    }  # fmt: skip


def campaign_card(batches: Iterable[int] = BATCHES) -> tuple[pd.DataFrame, Evidence]:
    """Each rung on the campaign's card over the batch, 64 heads, 512 candidates, as the planner runs it there.

    Returns:
        impl, batch, splits, median_us, low and high (the band), bound, and the terms in microseconds.
    """
    asked = [
        (impl, b, predict.planned_point(b, impl=impl, tile_class="sm120")) for impl in RUNGS for b in batches
    ]
    found = predict.predict_points([one for _, _, one in asked], CARD)
    rows = [_row(impl, b, one, f) for (impl, b, one), f in zip(asked, found, strict=True)]
    return pd.DataFrame(rows), proof.predicted("RTX PRO 6000", found[0].evidence)


def _short(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def over_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a batch with every rung's time and its band in words, and two ratios.

    Returns:
        batch, one column a rung, simt_over_mma, mma_over_staged.
    """
    table = []
    for batch, group in rows.groupby("batch"):
        times = group.set_index("impl")
        line = {"batch": batch}
        for impl in RUNGS:
            one = times.loc[impl]
            known = pd.notna(one["low"])
            line[impl] = _short(one["median_us"])
            line[impl] += f" ({_short(one['low'])} to {_short(one['high'])})" if known else ""
        line["simt_over_mma"] = times.loc["simt", "median_us"] / times.loc["mma", "median_us"]
        line["mma_over_staged"] = times.loc["mma", "median_us"] / times.loc["staged", "median_us"]
        table.append(line)
    return pd.DataFrame(table)


def _published(key: str) -> tuple[float, str, str]:
    with PUBLISHED.open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == key)
    return float(row["value"]), row["device"], row["url_or_ref"]


def beside_published() -> pd.DataFrame:
    """Public figures on sm_120 beside this book's kernels on the same shape, predicted for the RTX PRO 6000.

    Returns:
        what, published_us, where (device and source), ours (rung and splits), predicted_us.
    """
    eight = {"heads": 8, "topk": 2048, "tile_class": "sm120"}
    window = predict.planned_point(1, topk=512 + 128, impl="staged", tile_class="sm120")
    asked = [
        ("one token, two caches, FlashInfer", "flashinfer-t1-after",
         predict.point("staged", window.tile, 1, topk=512, extra_topk=128, num_splits=window.num_splits)),
        ("one token, 8 heads, 2,048 candidates, no split", "vllm-splitk-before",
         predict.planned_point(1, impl="mma", **eight)),
        ("the same with splits", "vllm-splitk-after",
         predict.planned_point(1, impl="split_k", num_splits=32, **eight)),
    ]  # fmt: skip
    found = predict.predict_points([one for _, _, one in asked], CARD)
    rows = []
    for (what, key, one), ours in zip(asked, found, strict=True):
        value, device, source = _published(key)
        splits = f", {one.num_splits} splits" if one.num_splits > 1 else ""
        rows.append(
            {"what": what, "published_us": value, "where": f"{device}, {source}",
             "ours": style.look(one.impl).label + splits, "predicted_us": ours.us}
        )  # fmt: skip
    return pd.DataFrame(rows)
