"""Who reads what, and how often: 64 per-head programs against programs that serve a group of heads."""

from __future__ import annotations

from matplotlib.figure import Figure

from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import arrow, box, canvas, say


def grid_and_sms(heads: int = 64, head_group: int = 32, topk: int = 512, sm_count: int = 188) -> Figure:
    """Two grids for one request: a program a head, and a program a head group.

    heads: query heads. head_group: heads that one program serves. topk: selected rows. sm_count: SMs of the
    device.
    """
    if heads % head_group:
        raise ValueError(f"head_group={head_group} does not divide heads={heads}; accepted: a divisor")
    groups = heads // head_group
    fig, ax = canvas(4.9, (0, 14), (0, 10.4))
    _half(ax, 0.0, heads, 1, topk, sm_count, style.VERMILLION, "One program per head")
    _half(
        ax,
        7.3,
        groups,
        head_group,
        topk,
        sm_count,
        style.BLUE,
        f"One program per group of {head_group} heads",
    )
    ax.plot([6.9, 6.9], [0.2, 10.2], color=style.RULE, linewidth=1)
    return fig


def _half(ax, left, programs, per_program, topk, sm_count, tint, title) -> None:
    wide = 6.5
    say(ax, left, 10.1, title, bold=True, size=10.5, colour=tint)

    bottom, height = 8.1, 1.1
    cells = 16
    for index in range(cells):
        box(ax, left + index * wide / cells, bottom, wide / cells, height, style.SKY)
    box(
        ax,
        left,
        bottom,
        wide,
        height,
        "none",
        f"the same {topk} selected KV rows",
        edge="none",
        bold=True,
        size=9.5,
    )

    shown = min(programs, 8)
    width = wide / max(shown, 5)
    start = left + (wide - shown * width) / 2
    for index in range(shown):
        x = start + index * width
        cut = programs > shown and index == shown - 2
        if cut:
            say(ax, x + width / 2, 5.25, "…", ha="center", size=14)
        else:
            last = index == shown - 1
            number = programs - 1 if last else index
            text = (
                f"head\n{number}"
                if per_program == 1
                else f"heads\n{number * per_program}–{(number + 1) * per_program - 1}"
            )
            ink = "white" if tint == style.BLUE else "black"
            box(ax, x + 0.05, 4.6, width - 0.1, 1.35, tint, text, ink=ink, size=8.5)
        for target in (0.25, 0.5, 0.75):
            arrow(
                ax,
                (left + wide * target, bottom - 0.05),
                (x + width * (0.25 + 0.5 * target), 6.0),
                colour=tint,
                width=0.5 if per_program == 1 else 1.2,
                head=5,
            )
    text = f"each row is read {programs} {'times' if programs != 1 else 'time'}"
    ax.text(
        left + wide / 2,
        7.1,
        text,
        ha="center",
        va="center",
        fontsize=10,
        fontweight="bold",
        color=style.INK,
        bbox={"facecolor": "white", "edgecolor": tint, "boxstyle": "round,pad=0.35"},
    )

    busy = min(programs, sm_count)
    columns = 47
    lines = -(-sm_count // columns)
    pitch = wide / columns
    for index in range(sm_count):
        column, line = index % columns, index // columns
        face = tint if index < busy else "#cdd3da"
        box(ax, left + column * pitch, 2.9 - line * pitch * 1.9, pitch * 0.78, pitch * 1.5, face, edge="none")
    say(ax, left, 3.9, f"{busy} of {sm_count} SMs have a program at batch 1", size=9.5)
    floor = 2.9 - lines * pitch * 1.9
    work = "multiply and sum on CUDA cores" if per_program == 1 else "one matrix product on tensor cores"
    say(
        ax,
        left,
        floor - 0.25,
        f"a program's scores: {per_program} × 512 by 512 × tile,\n{work}",
        size=9.5,
        va="top",
    )
