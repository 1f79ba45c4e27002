"""The indexer's wasted area: it scores every position a request could have, not those that it has."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import canvas, say, span


def wasted_area(
    live: Sequence[int] = (8_192, 24_576, 3_072, 12_288, 40_960, 6_144),
    max_context: int = 262_144,
    cap: int = 65_536,
) -> Figure:
    """One row a request, drawn to scale: live positions, the capped rest, and what the cap avoids.

    live: live context of each request. max_context: configured context. cap: bucket that covers the longest
    request.
    """
    if not 0 < max(live) <= cap <= max_context:
        raise ValueError(
            f"live={list(live)}, cap={cap}, max_context={max_context}; accepted: live <= cap <= max_context"
        )
    rows = len(live)
    fig, ax = canvas(3.3, (-0.085, 1.01), (-1.6, rows + 1.15))
    limit = cap / max_context
    for row, length in enumerate(live):
        y = rows - 1 - row
        share = length / max_context
        ax.barh(
            y,
            1,
            left=0,
            height=0.72,
            align="edge",
            facecolor="none",
            edgecolor=style.VERMILLION,
            linewidth=0.7,
            hatch="///",
        )
        ax.barh(y, limit, height=0.72, align="edge", color=style.ORANGE, alpha=1)
        ax.barh(y, share, height=0.72, align="edge", color=style.BLUE)
        say(ax, -0.01, y + 0.36, f"request {row}", ha="right", size=8.5)
    useful = sum(live) / (rows * max_context)
    capped = sum(live) / (rows * cap)
    span(ax, 0, 1, rows + 0.22, f"configured context: {max_context:,} positions", tick=0.12)
    span(ax, 0, limit, -0.32, f"cap: {cap:,}", below=True, tick=0.12)
    ax.text(
        0.64,
        rows / 2 - 0.14,
        f"uncapped: scored and thrown away\n{1 - useful:.0%} of the work",
        ha="center",
        va="center",
        fontsize=10.5,
        fontweight="bold",
        color=style.readable(style.VERMILLION),
        linespacing=1.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 6},
    )
    for x, tint, text in (
        (0.30, style.BLUE, "live positions"),
        (0.53, style.ORANGE, f"scored in vain even with the cap: {1 - capped:.0%}"),
    ):
        ax.barh(-1.02, 0.018, left=x, height=0.42, align="edge", color=tint)
        say(ax, x + 0.028, -0.81, text, size=9)
    return fig
