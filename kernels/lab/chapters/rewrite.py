"""Chapter 3's arithmetic: bytes saved, blocks of a head-shared grid, and what a faster part can give."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from kernels.lab import roofline
from kernels.lab.evidence import Evidence
from kernels.lab.figures import style

DATA = Path(__file__).resolve().parents[3] / "data"


def saved(block_hs: Iterable[int], batch: int = 1, heads: int = 64, topk: int = 512) -> pd.DataFrame:
    """KV bytes asked for, by the heads of a block: block_h, blocks, requested_mb, reads (of each row)."""
    rows = []
    for block_h in block_hs:
        rows.append(
            {
                "block_h": block_h,
                "blocks": batch * roofline.redundancy(heads, block_h),
                "requested_mb": roofline.requested_kv_bytes(batch, heads, topk, block_h) / 1e6,
                "reads": roofline.redundancy(heads, block_h),
            }
        )
    return pd.DataFrame(rows)


def grid_fill(batches: Iterable[int], block_h: int, heads: int = 64, sm_count: int = 188) -> pd.DataFrame:
    """A grid of (batch, head groups): batch, block_h, blocks, busy_sms, idle_sms, busy_share, fullest.

    fullest: blocks of the SM that gets most.
    """
    rows = []
    for batch in batches:
        blocks = batch * roofline.redundancy(heads, block_h)
        busy = min(blocks, sm_count)
        rows.append(
            {
                "batch": batch,
                "block_h": block_h,
                "blocks": blocks,
                "busy_sms": busy,
                "idle_sms": sm_count - busy,
                "busy_share": busy / sm_count,
                "fullest": -(-blocks // sm_count),
            }
        )
    return pd.DataFrame(rows)


def whole_speedup(share: float, factor: float) -> float:
    """Speed-up of a step when a part with `share` of it (0 to 1) becomes `factor` times faster: Amdahl.

    Raises:
        ValueError: a share outside 0..1, or a factor that is not positive.
    """
    if not 0 <= share <= 1 or factor <= 0:
        raise ValueError(f"share={share}, factor={factor}; accepted are 0 to 1 and more than 0")
    return 1 / (1 - share + share / factor)


@lru_cache
def claim(id: str) -> float:
    """A figure of the campaign's articles, by its id in data/campaign.csv.

    Raises:
        KeyError: no such claim.
    """
    with (DATA / "campaign.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["id"] == id:
                return float(row["value"])
    raise KeyError(f"id={id!r}: no such claim in data/campaign.csv")


def other_card() -> pd.DataFrame:
    """Another project's times of both designs (data/published.csv): impl, batch, median_us, device."""
    found = []
    with (DATA / "published.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kind, _, batch = row["id"].rpartition("-b")
            if kind in ("sm75-per-head", "sm75-shared"):
                found.append(
                    {
                        "impl": "simt" if kind == "sm75-per-head" else "mma",
                        "batch": int(batch),
                        "median_us": 1000 * float(row["value"]),
                        "device": row["device"],
                    }
                )
    return pd.DataFrame(found)


def fill_picture(
    fills: dict[str, pd.DataFrame], sm_count: int = 188, evidence: Evidence | None = None
) -> Figure:
    """Multiprocessors without work over the batch, for several grids: label -> `grid_fill`, two at most."""
    fig, ax = plt.subplots(figsize=(style.WIDTH, 3.3))
    batches = list(next(iter(fills.values()))["batch"])
    wide = 0.8 / len(fills)
    for place, (impl, table) in enumerate(fills.items()):
        mine = style.look(impl)
        x = [index - 0.4 + wide * (place + 0.5) for index in range(len(batches))]
        ax.bar(x, table["busy_sms"], width=wide * 0.92, color=mine.colour)
        for left, busy in zip(x, table["busy_sms"], strict=True):
            ax.annotate(
                f"{busy}",
                (left, busy),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                fontweight="bold",
                color=mine.ink,
            )
        ax.text(
            0.36 * place,
            1.06,
            f"\u25a0 {_says(table)}",
            transform=ax.transAxes,
            fontsize=9.5,
            color=mine.ink,
            fontweight="bold",
        )
    ax.axhline(sm_count, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
    ax.annotate(
        f"all {sm_count}",
        (1, sm_count),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=9,
        color=style.MUTED,
        va="center",
    )
    ax.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    ax.grid(axis="x", visible=False)
    ax.set(xlabel="batch (requests)", ylabel="SMs that get a block", ylim=(0, sm_count * 1.1))
    return style.finish(fig, evidence)


def _says(table: pd.DataFrame) -> str:
    heads = int(table["block_h"].iloc[0])
    return f"a block serves {heads} head{'s' if heads > 1 else ''}"


def predicted_lines(impls_tiles: dict[str, dict], batches: Iterable[int], device: str = "rtx-pro-6000"):
    """(rows of impl, batch, median_us, p20_us, p80_us; evidence) by the launch model, once it is validated.

    None where `data/model_validation.csv` does not judge the model: such a prediction is not shown.
    """
    from kernels.lab import evidence as proof
    from kernels.lab import predict
    from kernels.lab.devices import device_of

    if predict.validation_of(device_of(device).target.name) is None:
        return None
    points = [(impl, b) for impl in impls_tiles for b in batches]
    asked = [predict.point(impl, impls_tiles[impl], b) for impl, b in points]
    found = predict.predict_points(asked, device)
    rows = [
        {"impl": impl, "batch": b, "median_us": p.us, "p20_us": p.band[0], "p80_us": p.band[1]}
        for (impl, b), p in zip(points, found, strict=True)
    ]
    return pd.DataFrame(rows), proof.predicted(device_of(device).name, found[0].evidence)
