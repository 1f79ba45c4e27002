"""The bytes of one V4 cache page: token rows, then all scales, then the padding up to the page stride."""

from __future__ import annotations

from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import arrow, box, canvas, say, span

NOPE_BYTES, ROPE_BYTES, SCALES = 448, 128, 7
TOKEN_BYTES, SCALE_BYTES = NOPE_BYTES + ROPE_BYTES, 8


def page_layout(page_size: int = 64) -> Figure:
    """One page to scale, one token's row and one token's scales magnified.

    page_size: tokens a page, at least 2. The page stride is 584 * page_size rounded up to a multiple of 576.
    """
    if page_size < 2:
        raise ValueError(f"page_size={page_size} cannot be drawn; accepted: 2 or more")
    rows, tail = TOKEN_BYTES * page_size, SCALE_BYTES * page_size
    used = rows + tail
    stride = -(-used // TOKEN_BYTES) * TOKEN_BYTES
    fig, ax = canvas(4.4, (-0.2, 14.2), (-0.15, 7.8))
    payload, scales, padding = style.SKY, style.ORANGE, "#d8dce1"

    say(ax, 0, 7.5, f"One page of {page_size} tokens", bold=True, size=10)
    row_end, tail_end, end = 9.6, 12.2, 13.6
    shown = ["token 0", "token 1", "token 2", "…", f"token {page_size - 1}"]
    step = row_end / len(shown)
    for index, name in enumerate(shown):
        box(ax, index * step, 5.75, step, 0.95, payload if name != "…" else "#e6f3fb", name)
    box(ax, row_end, 5.75, tail_end - row_end, 0.95, scales, "scales of\nall tokens")
    box(ax, tail_end, 5.75, end - tail_end, 0.95, padding, f"pad\n{stride - used:,} B", hatch="////", edge="#a8afb8")
    for x, offset in ((0, 0), (row_end, rows), (tail_end, used), (end, stride)):
        ax.plot([x, x], [6.7, 6.92], color=style.MUTED, linewidth=1)
        say(ax, x, 7.1, f"{offset:,}", size=8.5, ha="center", colour=style.MUTED)
    say(ax, -0.02, 5.42, "byte offset above; widths not to scale", size=8, colour=style.MUTED)

    y = 2.75
    say(ax, 0, y + 1.55, f"One token's row: {TOKEN_BYTES} bytes", bold=True, size=10)
    arrow(ax, (1.5 * step, 5.7), (1.5 * step, y + 1.0), colour=style.BLUE)
    group = 7.9 / SCALES
    for index in range(SCALES):
        box(ax, index * group, y, group, 0.9, payload, f"64 × fp8\ngroup {index}", size=8)
    box(ax, 7.9, y, 2.7, 0.9, style.GREEN, "64 × bf16\nrope", ink="white")
    span(ax, 0.03, 7.85, y - 0.28, f"{NOPE_BYTES} bytes without position (e4m3)", below=True)
    span(ax, 7.95, 10.57, y - 0.28, f"{ROPE_BYTES} bytes with position", below=True)

    y = 0.35
    say(ax, 0, y + 1.02, f"One token's scales: {SCALE_BYTES} bytes at {rows:,} + {SCALE_BYTES} · token", bold=True, size=10)
    cell = 0.92
    for index in range(SCALES):
        box(ax, index * cell, y, cell, 0.62, scales, f"s{index}", size=9)
    box(ax, SCALES * cell, y, cell, 0.62, padding, "pad", size=8.5, hatch="////", edge="#a8afb8")
    say(ax, 8 * cell + 0.25, y + 0.31, "byte s stands for 2$^{s-127}$, one per group of 64;\nthe pad byte holds garbage", size=8.5)
    arrow(ax, (10.9, 5.7), (7.6, y + 1.15), colour=style.ORANGE, bend=-0.28)
    say(ax, 11.0, 3.85, f"{SCALE_BYTES * page_size:,} bytes of scales\nstart where the\nrows end", size=8.5)
    return fig
