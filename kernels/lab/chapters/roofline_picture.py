"""Chapter 1's pictures: the same rows read again and again, and what that does under a roofline."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from kernels.lab.devices import device_of
from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import box, canvas, say, span


def repeated_reads(heads: int = 64, topk: int = 512, entry_bytes: int = 584, shown: int = 12) -> Figure:
    """Every program of one request as a strip of the rows it reads; the first strip is all that is needed.

    heads: programs, one a head. topk: rows each of them reads. entry_bytes: bytes of a row.
    """
    if shown < 3 or heads < shown:
        raise ValueError(f"shown={shown} cannot be drawn; accepted: 3 to heads={heads}")
    fig, ax = canvas(3.9, (-1.9, 12.6), (-1.2, shown + 1.4))
    cells = 32
    width = 9.0 / cells
    for line in range(shown):
        cut = line == shown - 2
        y = shown - 1 - line
        if cut:
            say(ax, 4.5, y + 0.45, "⋮", ha="center", size=13)
            continue
        head = heads - 1 if line == shown - 1 else line
        tint = style.BLUE if line == 0 else style.VERMILLION
        for cell in range(cells):
            box(ax, cell * width, y + 0.08, width, 0.78, tint, alpha=1 if line == 0 else 0.5, line=0.5)
        say(ax, -0.15, y + 0.45, f"head {head}", ha="right", size=9)
    span(ax, 0, 9.0, shown + 0.3, f"the same {topk} rows of {entry_bytes} bytes for every head", tick=0.14)
    say(ax, 9.3, shown - 0.55, f"needed:\n{topk * entry_bytes:,} bytes", size=9, colour=style.BLUE, bold=True)
    middle = (shown - 1) / 2 - 0.2
    ax.plot([9.25, 9.25], [0.1, shown - 1.15], color=style.VERMILLION, linewidth=1.4)
    say(
        ax,
        9.45,
        middle,
        f"asked for again,\n{heads - 1} times:\n{(heads - 1) * topk * entry_bytes:,}\nbytes",
        size=9,
        colour=style.VERMILLION,
        bold=True,
    )
    say(ax, 0, -0.75, "one strip: one block's reads for one request", size=9, colour=style.MUTED)
    return fig


def roofline(
    intensities: dict[str, float], device: str = "rtx-pro-6000", evidence: Evidence | None = None
) -> Figure:
    """Attainable speed over operations a byte, with the two places where this operator stands.

    intensities: "requested" (bytes asked of L2) and "compulsory" (bytes that must come from DRAM), as
    `baseline.intensities` gives them.
    """
    device = device_of(device)
    tensor, lanes = device["bf16_tensor"], device["fp32"]
    l2, dram = device["l2_bandwidth"] / 1e3, device["dram_bandwidth"] / 1e3
    fig, ax = plt.subplots(figsize=(style.WIDTH, 4.4))
    x = np.geomspace(1, 1024, 200)
    ax.plot(x, np.minimum(x * dram, tensor), color=style.BLUE, linewidth=2)
    ax.plot(x, np.minimum(x * l2, lanes), color=style.VERMILLION, linewidth=2, linestyle="--")
    say_on = [
        (1000, tensor * 1.22, f"tensor cores: {tensor:,.0f} TFLOP/s", style.BLUE, "right", 0),
        (1000, lanes * 0.78, f"CUDA cores: {lanes:,.0f} TFLOP/s", style.VERMILLION, "right", 0),
        (1.9, 1.9 * l2 * 1.3, f"L2: {l2 * 1e3:,.0f} GB/s", style.VERMILLION, "center", 1),
        (34, 34 * dram * 0.62, f"DRAM: {dram * 1e3:,.0f} GB/s", style.BLUE, "center", 1),
    ]
    for at, height, text, tint, where, steep in say_on:
        ax.text(
            at,
            height,
            text,
            ha=where,
            va="center",
            fontsize=9,
            color=style.readable(tint),
            rotation=34 * steep,
            rotation_mode="anchor",
        )
    asked, once = intensities["requested"], intensities["compulsory"]
    low, high = min(asked * l2, lanes), min(once * dram, tensor)
    for value, height, tint, text, place, side in (
        (asked, low, style.VERMILLION, "one block a head: every read counts", (-66, 76), "left"),
        (once, high, style.BLUE, "each row read once", (-14, 36), "right"),
    ):
        ax.plot([value, value], [1, height], color=tint, linewidth=1, linestyle=(0, (2, 2)))
        ax.plot(value, height, marker="o", markersize=9, color=tint, zorder=5)
        ax.annotate(
            f"{text}\n{value:,.1f} operations a byte,\nat most {height:,.0f} TFLOP/s",
            (value, height),
            xytext=place,
            textcoords="offset points",
            fontsize=9,
            color=style.readable(tint),
            fontweight="bold",
            ha=side,
            va="center",
            linespacing=1.4,
            arrowprops={"arrowstyle": "-", "color": tint, "linewidth": 0.8, "shrinkB": 6},
        )
    style.log_axis(ax, "both")
    ax.set(xlim=(1, 1024), ylim=(1, tensor * 2))
    ax.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1,024"])
    ax.set(xlabel="floating-point operations for each byte", ylabel="attainable speed (TFLOP/s)")
    return style.finish(fig, evidence)
