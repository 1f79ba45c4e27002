"""The plots that every chapter draws from. Each returns a Figure; each draws an honest panel when it has no
data.
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.lab.figures.style import INK, MUTED, RULE, look


def _timed(df: pd.DataFrame) -> pd.DataFrame:
    """Rows that carry a validated time; frames without a status column are taken whole."""
    return df[df["status"] == "ok"] if "status" in df.columns else df


def series(df: pd.DataFrame) -> pd.DataFrame:
    """Adds the column `series`: impl, or 'auto_sm120' where `auto` is held to sm_120's limits. For
    `lines(by=…)`.
    """
    held = (df["impl"] == "auto") & (df["tile_class"] == "sm120")
    return df.assign(series=df["impl"].where(~held, "auto_sm120"))


def not_recorded(evidence: Evidence | None = None, what: str = "this measurement") -> Figure:
    """The panel that stands where a measurement is still missing.

    what: completes 'No run of … is recorded yet.'
    """
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.7))
    ax.set_axis_off()
    box = {"boxstyle": "round,pad=1.1", "facecolor": "none", "edgecolor": MUTED, "linestyle": (0, (5, 4))}
    ax.text(
        0.5,
        0.5,
        f"No run of {what} is recorded yet.\nExecute the chapter on a GPU to fill this figure.",
        ha="center",
        va="center",
        transform=ax.transAxes,
        color=MUTED,
        bbox=box,
        linespacing=1.7,
    )
    return style.finish(fig, evidence)


def lines(
    df: pd.DataFrame,
    evidence: Evidence | None = None,
    *,
    x: str = "batch",
    y: str = "median_us",
    by: str = "impl",
    x_label: str = "batch (requests)",
    y_label: str = "time per call (µs)",
    title: str | None = None,
    labels: Mapping[str, str] | None = None,
    low: str | None = "p20_us",
    high: str | None = "p80_us",
    log_y: bool = True,
) -> Figure:
    """One line per implementation over a log2 axis, labelled at its end; the band is the 20th to 80th
    percentile.

    df: tidy rows. x, y, by: its columns. labels: value of `by` -> label, where the usual one does not say
    enough.
    """
    data = _timed(df).dropna(subset=[y]) if len(df) else df
    if data.empty:
        return not_recorded(evidence, what=title or "this experiment")
    fig, ax = plt.subplots()
    ends = []
    for key, group in data.groupby(by, sort=False):
        group = group.sort_values(x)
        mine = look(str(key))
        ax.plot(group[x], group[y], color=mine.colour, marker=mine.marker or None, linestyle=mine.dash)
        if low in group.columns and high in group.columns:
            ax.fill_between(group[x], group[low], group[high], color=mine.colour, alpha=0.18, linewidth=0)
        name = (labels or {}).get(str(key), mine.label)
        ends.append((name, group[x].iloc[-1], group[y].iloc[-1], mine.colour))
    style.log_axis(ax, "x", x_values=sorted(data[x].unique()))
    if log_y:
        style.log_axis(ax, "y")
    else:
        ax.set_ylim(bottom=0)
    ax.set(xlabel=x_label, ylabel=y_label)
    if title:
        ax.set_title(title)
    style.label_ends(ax, ends)
    return style.finish(fig, evidence)


def heat_map(
    grid: pd.DataFrame,
    evidence: Evidence | None = None,
    *,
    x_label: str,
    y_label: str,
    unit: str,
    limit: float | None = None,
    limit_label: str = "over the limit",
    fmt: str = "{:,.0f}",
    log: bool = False,
    title: str | None = None,
) -> Figure:
    """A tile map: rows and columns of `grid` are its axes, every cell prints its value.

    unit: of the values, for the colour bar. limit: cells above it are hatched, so that 'does not fit' needs
    no colour.
    """
    if grid.empty or grid.isna().all(axis=None):
        return not_recorded(evidence, what=title or "this map")
    values = grid.to_numpy(dtype=float)
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.5 + 0.5 * len(grid)))
    norm = "log" if log else None
    image = ax.imshow(values, cmap=style.SEQUENTIAL, aspect="auto", norm=norm)
    middle = image.norm(values)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column]
            if value != value:
                ax.text(column, row, "–", ha="center", va="center", color=MUTED)
                continue
            ink = style.ink_on(image.cmap(middle[row, column]))
            over = limit is not None and value > limit
            ax.text(column, row, fmt.format(value), ha="center", va="center", color=ink, fontsize=9)
            if over:
                ax.add_patch(
                    plt.Rectangle(
                        (column - 0.5, row - 0.5),
                        1,
                        1,
                        fill=False,
                        hatch="////",
                        edgecolor=style.VERMILLION,
                        linewidth=1.6,
                    )
                )
    ax.set_xticks(
        range(len(grid.columns)), [style.plain_number(v) if np.isreal(v) else str(v) for v in grid.columns]
    )
    ax.set_yticks(
        range(len(grid.index)), [style.plain_number(v) if np.isreal(v) else str(v) for v in grid.index]
    )
    ax.grid(visible=False)
    ax.set(xlabel=x_label, ylabel=y_label)
    bar = fig.colorbar(image, ax=ax, pad=0.02)
    bar.set_label(unit)
    bar.outline.set_visible(False)
    if limit is not None and (values > limit).any():
        ax.annotate(
            f"hatched: {limit_label} ({fmt.format(limit)} {unit})",
            (1, 1),
            xycoords="axes fraction",
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=style.readable(style.VERMILLION),
        )
    if title:
        ax.set_title(title, pad=18)
    return style.finish(fig, evidence)


def scatter_prediction(
    df: pd.DataFrame,
    evidence: Evidence | None = None,
    *,
    predicted: str = "predicted_us",
    measured: str = "median_us",
    by: str = "impl",
    band: float = 0.25,
    unit: str = "µs",
    title: str | None = None,
) -> Figure:
    """Predicted against measured, log-log, with the line of equality and a band of ±`band` around it.

    df: rows with both columns; the median absolute error is printed in the figure.
    """
    data = _timed(df).dropna(subset=[predicted, measured]) if len(df) else df
    if data.empty:
        return not_recorded(evidence, what=title or "measured points for this model")
    fig, ax = plt.subplots(figsize=(5.4, 5.0))
    low = min(data[predicted].min(), data[measured].min()) / 1.4
    high = max(data[predicted].max(), data[measured].max()) * 1.4
    line = np.array([low, high])
    ax.fill_between(line, line * (1 - band), line * (1 + band), color=RULE, alpha=0.5, linewidth=0)
    ax.plot(line, line, color=INK, linewidth=1)
    ax.set(xlim=(low, high), ylim=(low, high))
    ends = []
    for key, group in data.groupby(by, sort=False):
        mine = look(str(key))
        ax.plot(
            group[measured],
            group[predicted],
            linestyle="none",
            marker=mine.marker or "o",
            color=mine.colour,
            markersize=6,
            alpha=0.85,
            label=mine.label,
        )
        ends.append(mine)
    style.log_axis(ax, "both")
    error = float(np.median(np.abs(data[predicted] / data[measured] - 1)))
    ax.text(
        0.03,
        0.97,
        f"median error {error:.0%} over {len(data)} points\nband: ±{band:.0%}",
        transform=ax.transAxes,
        va="top",
        fontsize=9,
        color=MUTED,
        linespacing=1.5,
    )
    if len(ends) > 1:
        ax.legend(loc="lower right", fontsize=9)
    ax.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    if title:
        ax.set_title(title)
    return style.finish(fig, evidence)
