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
from kernels.lab.compile.result import Compiled
from kernels.lab.devices import device_of
from kernels.lab.evidence import Evidence, missing, predicted
from kernels.lab.figures import lines, style
from kernels.lab.figures.diagrams.parts import canvas

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


def instructions(
    compiled: Compiled, batch: int, heads: int = 64, topk: int = 512, sm_count: int = 188
) -> dict:
    """Warp instructions of a launch's main loops: of all blocks, and of the multiprocessor with most blocks.

    compiled: a rung whose loop handles one tile a pass. Blocks are dealt out evenly.

    Returns:
        impl, batch, blocks, whole and busiest (millions of warp instructions).
    """
    block_h = 1 if compiled.impl in ("serial", "simt") else compiled.tile["block_h"]
    blocks = batch * roofline.redundancy(heads, block_h)
    passes = -(-topk // compiled.tile["block_t"])
    block = passes * compiled.main_loop.counts.total * (compiled.max_threads // 32)
    return {
        "impl": compiled.impl,
        "batch": batch,
        "blocks": blocks,
        "whole": blocks * block / 1e6,
        "busiest": -(-blocks // sm_count) * block / 1e6,
    }


def instruction_table(rungs: Iterable[Compiled], batches: Iterable[int], **shape) -> pd.DataFrame:
    """`instructions` of several rungs over the batch, one row each."""
    rungs = list(rungs)
    return pd.DataFrame([instructions(one, batch, **shape) for one in rungs for batch in batches])


def adds_up() -> pd.DataFrame:
    """What the campaign's figures around the rewrite imply of each other: quantity, stated, follows."""
    attention = claim("a2-attention-ms-before"), claim("a2-attention-ms-after")
    total = claim("a2-total-ms-before"), claim("a2-total-ms-after")
    share = attention[0] / total[0]
    rows = [
        ("attention faster (times)", claim("a2-attention-speedup"), attention[0] / attention[1]),
        ("attention's share before (%)", claim("a2-attention-share"), 100 * share),
        ("all GPU time faster (times)", claim("a2-total-halved"), total[0] / total[1]),
        (
            "the same by Amdahl's law (times)",
            float("nan"),
            whole_speedup(share, attention[0] / attention[1]),
        ),
        ("attention's share after (%)", claim("a3-attention-share-after"), 100 * attention[1] / total[1]),
        (
            "loss at one request (%)",
            claim("a2-regression"),
            100 * (1 - claim("a2-tok-after") / claim("a2-tok-before")),
        ),
    ]
    return pd.DataFrame(rows, columns=["quantity", "stated", "follows"])


def predictions(tiles: dict[str, dict], batches: Iterable[int], device: str = "rtx-pro-6000"):
    """Times of rungs by the launch model, for the campaign's card.

    tiles: impl -> tile. Where `data/model_validation.csv` does not judge the model its times are not shown.

    Returns:
        (rows of impl, batch, median_us, p20_us, p80_us: the band; evidence). No rows without a validation.
    """
    from kernels.lab import predict

    device = device_of(device)
    if predict.validation_of(device.target.name) is None:
        return pd.DataFrame(), missing("data/model_validation.csv holds no judgement of the model")
    points = [(impl, batch) for impl in tiles for batch in batches]
    asked = [predict.point(impl, tiles[impl], batch) for impl, batch in points]
    found = predict.predict_points(asked, device)
    rows = [
        {"impl": impl, "batch": batch, "median_us": one.us, "p20_us": one.band[0], "p80_us": one.band[1]}
        for (impl, batch), one in zip(points, found, strict=True)
    ]
    return pd.DataFrame(rows), predicted(device.name, found[0].evidence.removeprefix("predicted, "))


def prediction_picture(rows: pd.DataFrame, evidence: Evidence) -> Figure:
    """Predicted times over the batch, or the panel that says why there are none."""
    if rows.empty:
        fig, ax = canvas(1.5, (0, 1), (0, 1))
        text = "No prediction is shown:\nthe launch model has not been judged on a GPU yet."
        frame = {
            "boxstyle": "round,pad=1.1",
            "facecolor": "none",
            "edgecolor": style.MUTED,
            "linestyle": "--",
        }
        ax.text(0.5, 0.5, text, ha="center", va="center", color=style.MUTED, bbox=frame, linespacing=1.7)
        return style.finish(fig, evidence)
    return lines(rows, evidence)
