"""Boxes, arrows and braces that the diagrams share."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from kernels.lab.figures.style import INK, MUTED, WIDTH, readable


def canvas(height: float, xlim: tuple[float, float], ylim: tuple[float, float], width: float = WIDTH):
    """An empty figure without axes, in the caller's own units."""
    fig, ax = plt.subplots(figsize=(width, height))
    ax.set_axis_off()
    ax.set(xlim=xlim, ylim=ylim)
    return fig, ax


def box(
    ax,
    x,
    y,
    width,
    height,
    face,
    text="",
    *,
    ink="black",
    size=9.0,
    edge="white",
    hatch=None,
    alpha=1.0,
    bold=False,
    rounded=False,
    line=0.8,
):
    """A filled rectangle with centred text, lower left corner at (x, y)."""
    if rounded:
        patch = FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=face,
            edgecolor=edge,
            linewidth=line,
            alpha=alpha,
        )
    else:
        patch = Rectangle(
            (x, y), width, height, facecolor=face, edgecolor=edge, linewidth=line, hatch=hatch, alpha=alpha
        )
    ax.add_patch(patch)
    if text:
        ax.text(
            x + width / 2,
            y + height / 2,
            text,
            ha="center",
            va="center",
            color=ink,
            fontsize=size,
            fontweight="bold" if bold else "normal",
            linespacing=1.35,
        )
    return patch


def arrow(ax, start, end, colour=MUTED, width=1.2, bend=0.0, head=9):
    """An arrow between two points; bend curves it."""
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=head,
            color=colour,
            linewidth=width,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=0,
            shrinkB=1,
        )
    )


def span(ax, x0, x1, y, text, *, colour=MUTED, below=False, size=8.5, tick=0.08):
    """A horizontal dimension line from x0 to x1 with its text beside the middle."""
    ax.plot([x0, x1], [y, y], color=colour, linewidth=1)
    for x in (x0, x1):
        ax.plot([x, x], [y - tick, y + tick], color=colour, linewidth=1)
    ax.annotate(
        text,
        ((x0 + x1) / 2, y),
        xytext=(0, -4 if below else 4),
        textcoords="offset points",
        ha="center",
        va="top" if below else "bottom",
        fontsize=size,
        color=INK,
    )


def say(ax, x, y, text, *, size=9.0, colour=INK, ha="left", va="center", bold=False):
    """Text at a point, in a shade of `colour` that can be read."""
    colour = readable(colour)
    ax.text(
        x,
        y,
        text,
        fontsize=size,
        color=colour,
        ha=ha,
        va=va,
        fontweight="bold" if bold else "normal",
        linespacing=1.4,
    )
