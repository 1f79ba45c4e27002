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
    """Every program of one request as a strip of the rows that it reads; the first strip is all that is needed.

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
    say(
        ax, 9.3, shown - 0.55, f"needed:\n{topk * entry_bytes:,} bytes", size=9, colour=style.BLUE, bold=True
    )
    middle = (shown - 1) / 2 - 0.2
    ax.plot([9.25, 9.25], [0.1, shown - 1.15], color=style.VERMILLION, linewidth=1.4)
    say(
        ax, 9.45, middle, f"asked for again,\n{heads - 1} times:\n{(heads - 1) * topk * entry_bytes:,}\nbytes",
        size=9, colour=style.VERMILLION, bold=True,
    )  # fmt: skip
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
    fig, ax = plt.subplots(figsize=(style.WIDTH, 4.3))
    x = np.array([1.0, 1024.0])
    for speed, name, dash in (
        (device["l2_bandwidth"], "L2 bandwidth", "--"),
        (device["dram_bandwidth"], "DRAM bandwidth", "-"),
    ):
        top = device["bf16_tensor"]
        ax.plot(x, np.minimum(x * speed / 1e3, top), color=style.INK, linestyle=dash, linewidth=1.5)
        at = 1.6
        ax.annotate(
            f"{name}, {speed:,} GB/s", (at, at * speed / 1e3), xytext=(-3, 5), textcoords="offset points",
            rotation=_slope(ax), rotation_mode="anchor", fontsize=9, color=style.INK,
        )  # fmt: skip
    for rate, name in ((device["bf16_tensor"], "tensor cores, bf16"), (device["fp32"], "CUDA cores, float32")):
        ax.axhline(rate, color=style.MUTED, linewidth=1.1, linestyle=":" if "CUDA" in name else "-")
        ax.annotate(
            f"{name}: {rate:,.0f} TFLOP/s", (1024, rate), xytext=(-2, 4), textcoords="offset points",
            ha="right", fontsize=9, color=style.MUTED,
        )  # fmt: skip
    asked, once = intensities["requested"], intensities["compulsory"]
    low = min(asked * device["l2_bandwidth"] / 1e3, device["fp32"])
    high = min(once * device["dram_bandwidth"] / 1e3, device["bf16_tensor"])
    for value, height, tint, text, place in (
        (asked, low, style.VERMILLION, "one block a head:\nevery read counted, CUDA cores", (10, -20)),
        (once, high, style.BLUE, "each row read once,\ntensor cores", (12, -20)),
    ):
        ax.plot([value, value], [1, height], color=tint, linewidth=1, linestyle=(0, (2, 2)))
        ax.plot(value, height, marker="o", markersize=9, color=tint, zorder=5)
        ax.annotate(
            f"{text}\nat most {height:,.0f} TFLOP/s", (value, height), xytext=place,
            textcoords="offset points", fontsize=9, color=style.readable(tint), fontweight="bold", va="top",
        )  # fmt: skip
    style.log_axis(ax, "both")
    ax.set(xlim=(1, 1024), ylim=(1, device["bf16_tensor"] * 2.2))
    ax.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1,024"])
    ax.set(xlabel="floating-point operations per byte", ylabel="attainable speed (TFLOP/s)")
    return style.finish(fig, evidence)


def _slope(ax) -> float:
    """Degrees of a line of slope one in log-log axes of this figure's shape."""
    wide, high = ax.figure.get_size_inches()
    return float(np.degrees(np.arctan2(high * 0.86 / 3.04, wide * 0.9 / 3.01)))
