"""Divided labour: a block whose warps do everything in turn, above one whose warps fetch or multiply."""

from __future__ import annotations

from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import arrow, box, canvas, say, span

DEQUANTISE, MULTIPLY = 2.0, 3.2
"""Lengths of the two jobs for a tile when all warps do them, in the figure's own unit."""


def schedule(
    tiles: int, buffers: int, dequantise: float, multiply: float
) -> list[tuple[float, float, float, float]]:
    """When each tile is dequantised and multiplied by two groups that share some buffers: start, end, start, end.

    Raises:
        ValueError: no buffer.
    """
    if buffers < 1:
        raise ValueError(f"buffers: got {buffers}, accepted are integers from 1")
    found: list[tuple[float, float, float, float]] = []
    for tile in range(tiles):
        filled = found[-1][1] if found else 0.0
        empty = found[tile - buffers][3] if tile >= buffers else 0.0
        start = max(filled, empty)
        full = start + dequantise
        begin = max(full, found[-1][3] if found else 0.0)
        found.append((start, full, begin, begin + multiply))
    return found


def divided_labour(tiles: int = 4, buffers: int = 2, share: float = 0.5) -> Figure:
    """Both blocks over time, not to scale.

    share: of the warps that dequantised before, how many do so after; the job takes as much longer.
    """
    after = schedule(tiles, buffers, DEQUANTISE / share, MULTIPLY)
    each = DEQUANTISE + MULTIPLY
    end = max(tiles * each, after[-1][3])
    fig, ax = canvas(3.8, (-0.215 * end, 1.02 * end), (-1.1, 9.1))
    left = -0.215 * end
    say(ax, left, 8.75, "every warp does everything", bold=True, size=10)
    say(ax, left, 6.75, "all warps", size=9)
    for tile in range(tiles):
        x = tile * each
        box(ax, x, 6.3, DEQUANTISE, 0.9, style.SKY, f"{tile}")
        box(ax, x + DEQUANTISE, 6.3, MULTIPLY, 0.9, style.BLUE, f"{tile}", ink="white")
    span(ax, 0, DEQUANTISE, 7.45, "dequantise", size=8.5)
    span(ax, DEQUANTISE, each, 7.45, "multiply", size=8.5)
    say(ax, left, 5.1, "labour divided", bold=True, size=10)
    say(ax, left, 3.75, "producers", size=9)
    say(ax, left, 1.15, "consumers", size=9)
    for tile, (start, full, begin, done) in enumerate(after):
        box(ax, start, 3.3, full - start, 0.9, style.SKY, f"{tile}: buffer {tile % buffers}")
        box(ax, begin, 0.7, done - begin, 0.9, style.BLUE, f"{tile}", ink="white")
        arrow(ax, (full, 3.25), (begin + 0.06 * each, 1.65), colour=style.GREEN)
        if tile + buffers < tiles:
            arrow(
                ax,
                (done, 1.65),
                (max(done, after[tile + buffers][0]) + 0.05 * each, 3.25),
                colour=style.VERMILLION,
            )
    full, begin = after[0][1], after[0][2]
    say(ax, full - 0.12 * each, 2.45, "full", size=8.5, colour=style.GREEN, ha="right")
    done = after[0][3]
    say(ax, done + 0.04 * each, 2.45, "empty", size=8.5, colour=style.VERMILLION, ha="right")
    last = after[-1][3]
    for x, low, high in ((tiles * each, 0.2, 7.4), (last, 0.2, 1.6)):
        ax.plot([x, x], [low, high], color=style.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    arrow(ax, (tiles * each, 0.0), (last, 0.0), colour=style.BLUE)
    say(ax, last - 0.1 * each, 0.0, "saved", size=9, colour=style.BLUE, bold=True, ha="right")
    say(ax, 0, -0.85, "time: not to scale. A number is a tile.", size=8.5, colour=style.MUTED)
    return fig
