"""Who holds which bytes of a group of columns: a lane's part for the scores, and its part for the output."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import box, canvas, say

BYTES = 4  # of a word


def operand_lanes(scores: np.ndarray, output: np.ndarray, lane: int, rows: int = 16) -> Figure:
    """Two fields of `rows` candidates by 64 columns, a lane's words in colour.

    scores, output: the lane of every word, [rows, words], as bytes come from the cache and as they are taken over.
    """
    columns = BYTES * scores.shape[1]
    fig, ax = canvas(4.2, (-12, columns + 1), (-2.2, 2 * rows + 8))
    for low, lanes, title in (
        (rows + 6, scores, "for the scores: a candidate is a row of the product"),
        (0, output, "for the output: a column is a row of the product"),
    ):
        say(ax, 0, low + rows + 1.3, title, bold=True, size=9.5)
        box(ax, 0, low, columns, rows, style.SKY, edge=style.MUTED, alpha=0.35)
        for row in range(rows):
            for word in np.flatnonzero(lanes[row] == lane):
                box(ax, BYTES * word, low + rows - 1 - row, BYTES, 1, style.BLUE, edge=style.BLUE, line=0.4)
        for row in range(1, rows):
            ax.plot([0, columns], [low + row] * 2, color="white", linewidth=0.5)
        for column in range(BYTES, columns, BYTES):
            ax.plot([column] * 2, [low, low + rows], color="white", linewidth=0.5)
        say(ax, -1, low + rows / 2, f"{rows} candidates", size=8.5, ha="right")
        say(ax, 0, low - 1.3, "64 columns of a group, a byte each", size=8.5, colour=style.MUTED)
    return fig
