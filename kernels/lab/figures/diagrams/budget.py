"""What one block keeps in shared memory, as a stack against the limit of 99 KB."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.lab.figures.style import finish

SM120_LIMIT = 101_376
PARTS = {
    "Q": style.BLUE,
    "K": style.SKY,
    "KV": style.SKY,
    "V": style.GREEN,
    "P": style.ORANGE,
    "scores": style.ORANGE,
    "scales": style.YELLOW,
    "indices": style.GREY,
    "stage 2": "#a6d8f3",
}


def by_hand(
    block_h: int, block_t: int, stages: int = 1, width: int = 512, element_bytes: int = 2
) -> dict[str, int]:
    """Bytes that the plain arithmetic asks for: Q, every stage of the KV tile, and the probabilities."""
    parts = {"Q": block_h * width * element_bytes, "KV": block_t * width * element_bytes}
    if stages > 1:
        parts["stage 2" if stages == 2 else f"{stages - 1} stages"] = (
            (stages - 1) * block_t * width * element_bytes
        )
    parts["P"] = block_h * block_t * element_bytes
    return parts


def shared_memory_budget(
    stacks: Mapping[str, Mapping[str, int] | int] | None = None,
    limit: int = SM120_LIMIT,
    evidence: Evidence | None = None,
    limit_label: str = "limit on sm_120",
) -> Figure:
    """Stacked bars in KiB, one per candidate tile, with the limit as a line.

    stacks: label -> {part: bytes}, or label -> bytes for a compiled total. limit: bytes a block may use.
    """
    if stacks is None:
        stacks = {
            f"{h} heads\n{t} tokens\n{s} stage{'s' if s > 1 else ''}": by_hand(h, t, s)
            for h, t, s in ((64, 64, 1), (64, 32, 1), (32, 32, 1), (32, 32, 2), (16, 32, 2))
        }
    fig, ax = plt.subplots(figsize=(style.WIDTH, 3.9))
    totals = []
    for column, parts in enumerate(stacks.values()):
        named = {"": parts} if isinstance(parts, int) else parts
        base = 0.0
        for part, size in named.items():
            kib = size / 1024
            tint = PARTS.get(part, style.BROWN if part else style.GREY)
            ax.bar(column, kib, bottom=base, width=0.8, color=tint, edgecolor="white", linewidth=0.8)
            if kib >= 5.5 and part:
                ink = "white" if tint in (style.BLUE, style.GREEN, style.BROWN) else "black"
                ax.text(
                    column,
                    base + kib * 0.42,
                    f"{part}  {kib:.0f}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color=ink,
                )
            base += kib
        totals.append(base)
    top = max([*totals, limit / 1024]) * 1.16
    for column, total in enumerate(totals):
        fits = total * 1024 <= limit
        struck = fits and total + 0.1 * top > limit / 1024  # the limit's line would run through the label
        ax.annotate(
            f"{total:.0f} KiB\n{'fits' if fits else 'does not fit'}",
            (column, limit / 1024 if struck else total),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            fontweight="bold",
            color=style.INK if fits else style.readable(style.VERMILLION),
        )
    ax.axhline(limit / 1024, color=style.VERMILLION, linewidth=1.6, linestyle=(0, (5, 3)))
    ax.annotate(
        f"{limit_label}\n{limit / 1024:.0f} KiB ({limit:,} B)",
        (1.0, limit / 1024),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        color=style.readable(style.VERMILLION),
        fontsize=9,
        va="center",
        fontweight="bold",
    )
    ax.set_xticks(range(len(stacks)), list(stacks))
    ax.set_ylim(0, top)
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("shared memory of one block (KiB)")
    return finish(fig, evidence)
