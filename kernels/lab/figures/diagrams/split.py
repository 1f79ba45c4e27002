"""Split-K: each block takes a range of the tokens, then a second step merges the partials by their LSEs."""

from __future__ import annotations

from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import arrow, box, canvas, say


def split_and_combine(topk: int = 512, num_splits: int = 4) -> Figure:
    """The data flow for one request and one head group.

    topk: selected tokens. num_splits: blocks that share them, 2 to 6.
    """
    if not 2 <= num_splits <= 6:
        raise ValueError(f"num_splits={num_splits} cannot be drawn; accepted: 2 to 6")
    fig, ax = canvas(4.6, (0, 14.4), (0, 10))
    steps = (
        (0.0, "1  split the tokens"),
        (4.1, "2  attend, one block each"),
        (8.6, "3  partials"),
        (11.5, "4  combine"),
    )
    for x, text in steps:
        say(ax, x, 9.4, text, bold=True, size=10, va="baseline")
    lane = 8.4 / num_splits
    size = -(-topk // num_splits)
    middle = 0.4 + 8.4 / 2
    for split in range(num_splits):
        y = 0.4 + 8.4 - (split + 1) * lane + lane * 0.14
        high = lane * 0.72
        mid = y + high / 2
        low, last = split * size, min(topk, (split + 1) * size) - 1
        box(ax, 0.0, y, 2.7, high, style.SKY, f"tokens {low}–{last}")
        arrow(ax, (2.75, mid), (4.05, mid))
        box(ax, 4.1, y, 3.2, high, style.BLUE, "softmax over its own\ntokens only", ink="white", size=8.5)
        arrow(ax, (7.35, mid), (8.55, mid))
        box(ax, 8.6, y, 1.75, high, style.ORANGE, f"$o_{split}$  $\\ell_{split}$", size=11)
        arrow(ax, (10.4, mid), (11.45, middle + (num_splits / 2 - split - 0.5) * 0.42), bend=0.0)
    tall = 4.3
    box(ax, 11.5, middle - tall / 2, 2.85, tall, style.GREEN)
    ax.text(
        12.92,
        middle,
        "$\\ell = \\ln\\,\\sum_i e^{\\ell_i}$\n\n$o = \\sum_i e^{\\ell_i-\\ell}\\, o_i$",
        ha="center",
        va="center",
        color="white",
        fontsize=12.5,
    )
    arrow(ax, (12.92, middle - tall / 2 - 0.05), (12.92, 1.35))
    say(ax, 12.92, 0.85, "output bf16, LSE fp32", ha="center", size=9)
    say(ax, 11.5, 7.95, "exact: no split needs\nanother one's maximum", size=8.5, colour=style.MUTED)
    say(ax, 8.6, 0.12, "$o_i$ output, $\\ell_i$ log-sum-exp", size=8.5, colour=style.MUTED)
    return fig
