"""The bar charts: ratios to a peer, shares of a decode step, and the waterfall of the stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.lab.figures.plots import not_recorded
from kernels.lab.figures.style import INK, MUTED, look


def ratio_bars(
    ratios: Mapping[str, float],
    evidence: Evidence | None = None,
    *,
    x_label: str = "time relative to the peer (less is faster)",
    goal: float | None = 1.0,
    goal_label: str = "the peer",
    title: str | None = None,
    fmt: str = "{:.2f}×",
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Horizontal bars of ratios with a line at `goal`.

    ratios: label -> ratio. colours: label -> key of the style table; by default one hue tells which side of
    the goal a bar is on, and the printed ratio says it again.
    """
    ratios = {key: value for key, value in ratios.items() if value is not None and value == value}
    if not ratios:
        return not_recorded(evidence, what=title or "this comparison")
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.1 + 0.34 * len(ratios)))
    end = max([*ratios.values(), goal or 0]) * 1.15
    for row, (label, value) in enumerate(ratios.items()):
        if colours and label in colours:
            tint = look(colours[label]).colour
        else:
            tint = style.BLUE if goal is None or value <= goal else style.VERMILLION
        ax.barh(row, value, height=0.62, color=tint)
        inside = (
            goal is not None and value < goal < value + 0.1 * end
        )  # beside the bar the goal's line would strike it
        ax.annotate(
            fmt.format(value),
            (value, row),
            xytext=(-4 if inside else 4, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            fontsize=9,
            color=style.ink_on(tint) if inside else INK,
        )
    if goal is not None:
        ax.axvline(goal, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        ax.annotate(
            goal_label,
            (goal, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
        )
    ax.set_yticks(range(len(ratios)), list(ratios))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlim(0, end)
    ax.set_xlabel(x_label)
    if title:
        ax.set_title(title, pad=18 if goal is not None else 6)
    return style.finish(fig, evidence)


def share_bars(
    shares: pd.DataFrame,
    evidence: Evidence | None = None,
    *,
    x_label: str = "share of the decode step (%)",
    title: str | None = None,
) -> Figure:
    """Stacked bars: one bar per row (a stage), one segment per column (a part), as shares of the row's total.

    shares: non-negative values in any unit. A part is named once, at its widest segment; parts that are too narrow
    everywhere are named beside the bars. Segments under 4 % keep their place but no number.
    """
    if shares.empty or shares.isna().all(axis=None):
        return not_recorded(evidence, what=title or "this profile")
    percent = shares.fillna(0).div(shares.fillna(0).sum(axis=1), axis=0) * 100
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.35 + 0.68 * len(percent)))
    left = np.zeros(len(percent))
    for part in percent.columns:
        widths = percent[part].to_numpy()
        tint = look(str(part)).colour
        ax.barh(
            range(len(percent)), widths, left=left, height=0.56, color=tint, edgecolor="white", linewidth=0.8
        )
        for row, width in enumerate(widths):
            if width >= 4:
                ax.text(
                    left[row] + width / 2,
                    row,
                    f"{width:.0f}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color=style.ink_on(tint),
                )
        left += widths
    placed, narrow = name_places(percent)
    for part, (row, centre) in placed.items():
        ax.annotate(
            look(part).label,
            (centre, row - 0.28),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=look(part).ink,
            fontsize=9,
            fontweight="bold",
            annotation_clip=False,
        )
    ax.set_yticks(range(len(percent)), [look(str(key)).label for key in percent.index])
    ax.set_ylim(len(percent) - 0.6, -0.72)
    ax.grid(visible=False)
    ax.set_xlim(0, 100)
    ax.set_xlabel(x_label)
    if narrow:
        squares = [Patch(color=look(part).colour, label=look(part).label) for part in narrow]
        ax.legend(
            handles=squares, title="narrow", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False,
            fontsize=9, title_fontsize=9, handlelength=0.9, handleheight=0.9, alignment="left",
        )  # fmt: skip
    if title:
        ax.set_title(title)
    return style.finish(fig, evidence)


CHARACTER = 1.75  # percent of the axis that a character of a name takes
WIDE_ENOUGH = 2.5


def name_places(percent: pd.DataFrame) -> tuple[dict[str, tuple[int, float]], list[str]]:
    """Where each part's name stands: part -> (row, centre in percent); and the parts that find no place.

    A name stands above the part's widest segment, moved sideways as far as it still touches its segment. Wide parts
    choose first.
    """
    lefts = percent.cumsum(axis=1) - percent
    taken: dict[int, list[tuple[float, float]]] = {}
    placed, narrow = {}, []
    for part in percent.max().sort_values(ascending=False, kind="stable").index:
        row = int(percent[part].to_numpy().argmax())
        width = float(percent[part].iloc[row])
        start = float(lefts[part].iloc[row])
        half = len(look(str(part)).label) * CHARACTER / 2
        middle = start + width / 2
        reach = max(0.0, half - 1)
        found = None
        for centre in sorted(
            np.arange(start - reach, start + width + reach + 0.5, 0.5), key=lambda c: abs(c - middle)
        ):
            clear = all(centre + half <= low or high <= centre - half for low, high in taken.get(row, ()))
            if clear and half <= centre <= 101 - half:
                found = float(centre)
                break
        if width < WIDE_ENOUGH or found is None:
            narrow.append(str(part))
            continue
        taken.setdefault(row, []).append((found - half, found + half))
        placed[str(part)] = (row, found)
    order = [str(part) for part in percent.columns]
    return placed, sorted(narrow, key=order.index)


def waterfall(
    steps: Iterable[tuple[str, float]],
    evidence: Evidence | None = None,
    *,
    y_label: str = "decode step (ms)",
    title: str | None = None,
    fmt: str = "{:,.1f}",
    log_y: bool = False,
) -> Figure:
    """What each stage takes away: a bar per stage from the previous stage's value down to its own.

    steps: (stage, value) in the campaign's order; the first is the start, a last bar shows what is left.
    """
    steps = [(stage, value) for stage, value in steps if value is not None and value == value]
    if len(steps) < 2:
        return not_recorded(evidence, what=title or "these stages")
    fig, ax = plt.subplots()
    names = [look(stage).label for stage, _ in steps]
    floor = min(value for _, value in steps) / 3 if log_y else 0.0
    first = steps[0]
    ax.bar(0, first[1] - floor, bottom=floor, color=look(first[0]).colour, width=0.62)
    _above(ax, 0, first[1], fmt.format(first[1]))
    for position, ((_, before), (stage, after)) in enumerate(zip(steps, steps[1:], strict=False), start=1):
        ax.bar(position, before - after, bottom=after, color=look(stage).colour, width=0.62)
        ax.plot([position - 0.69, position + 0.31], [before, before], color=MUTED, linewidth=0.9)
        factor = before / after
        _above(ax, position, max(before, after), f"÷ {factor:.2f}" if factor >= 1 else f"× {1 / factor:.2f}")
    last = steps[-1][1]
    end = len(steps)
    ax.plot([end - 1.31, end + 0.31], [last, last], color=MUTED, linewidth=0.9)
    ax.bar(end, last - floor, bottom=floor, color="none", edgecolor=INK, linewidth=1.4, width=0.62)
    _above(ax, end, last, fmt.format(last))
    ax.set_xticks(range(end + 1), [*names, "what is left"])
    ax.grid(axis="x", visible=False)
    if log_y:
        style.log_axis(ax, "y")
        ax.set_ylim(floor, first[1] * 1.6)
    else:
        ax.set_ylim(0, first[1] * 1.12)
    ax.set_ylabel(y_label)
    if title:
        ax.set_title(title)
    return style.finish(fig, evidence)


def _above(ax, x: float, y: float, text: str) -> None:
    ax.annotate(
        text, (x, y), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9.5, fontweight="bold"
    )
