"""The bytes of one V4 cache page: token rows, then all scales, then the padding up to the page stride."""

from __future__ import annotations

from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import box, canvas, say, span

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
    fig, ax = canvas(4.3, (-0.2, 14.3), (-0.1, 7.7))
    payload, scales, padding = style.SKY, style.ORANGE, "#d2d7de"

    say(
        ax,
        0,
        7.4,
        f"One page of {page_size} tokens, offsets in bytes (widths not to scale)",
        bold=True,
        size=10,
    )
    row_end, tail_end, end = 9.9, 12.3, 13.6
    shown = ["token 0", "token 1", "token 2", "…", f"token {page_size - 1}"]
    step = row_end / len(shown)
    _magnify(ax, (step, 2 * step), 5.45, (0, 9.9), 3.3, payload)
    _magnify(ax, (row_end, tail_end), 5.45, (11.1, 12.3), 4.2, scales)
    for index, name in enumerate(shown):
        box(ax, index * step, 5.45, step, 0.95, payload if name != "…" else "#d9edf9", name)
    box(ax, row_end, 5.45, tail_end - row_end, 0.95, scales, "scales of\nall tokens")
    box(
        ax,
        tail_end,
        5.45,
        end - tail_end,
        0.95,
        padding,
        f"unused\n{stride - used:,} B",
        hatch="////",
        edge="#a8afb8",
    )
    for x, offset in ((0, 0), (row_end, rows), (tail_end, used), (end, stride)):
        ax.plot([x, x], [6.4, 6.6], color=style.MUTED, linewidth=1)
        say(ax, x, 6.8, f"{offset:,}", size=8.5, ha="left" if x == 0 else "center", colour=style.MUTED)

    y, nope_end = 2.4, 7.35
    group = nope_end / SCALES
    for index in range(SCALES):
        box(ax, index * group, y, group, 0.9, payload, f"group {index}\n64 fp8", size=8)
    box(ax, nope_end, y, 9.9 - nope_end, 0.9, style.GREEN, "64 × bf16\nrope", ink="white")
    span(ax, 0.03, nope_end - 0.05, y - 0.28, f"{NOPE_BYTES} bytes without position (e4m3)", below=True)
    span(ax, nope_end + 0.05, 9.87, y - 0.28, f"{ROPE_BYTES} bytes with position", below=True, size=7.8)
    say(ax, 0, 0.75, f"One token's row: {TOKEN_BYTES} bytes at {TOKEN_BYTES} · token", bold=True, size=10)
    say(
        ax,
        0,
        0.25,
        f"{SCALES} groups of 64 fp8 values, each with one scale; the rope values need none",
        size=8.5,
    )

    high = 0.4
    for index in range(SCALES):
        box(ax, 11.1, 4.2 - (index + 1) * high, 1.2, high, scales, f"s{index}", size=8.5)
    box(ax, 11.1, 4.2 - 8 * high, 1.2, high, padding, "pad", size=8.5, hatch="////", edge="#a8afb8")
    say(ax, 12.45, 4.2 - 3.5 * high, "scale\n2$^{s-127}$\nof its\ngroup", size=8.5)
    say(ax, 12.45, 4.2 - 7.5 * high, "garbage", size=8.5)
    say(
        ax,
        10.5,
        0.5,
        f"One token's scales: {SCALE_BYTES}\nbytes at {rows:,} + {SCALE_BYTES} · token",
        bold=True,
        size=9,
    )
    return fig


def _magnify(
    ax, source: tuple[float, float], top: float, target: tuple[float, float], bottom: float, tint: str
) -> None:
    """A pale funnel from the small drawing above to the large one below."""
    corners = [(source[0], top), (source[1], top), (target[1], bottom), (target[0], bottom)]
    ax.fill(*zip(*corners, strict=True), color=tint, alpha=0.22, linewidth=0)
