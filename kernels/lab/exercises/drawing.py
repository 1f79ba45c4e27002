"""The pictures of the checks, in the book's visual language. Each returns (figure, text alternative)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BAD_FLOOR = 1e-12  # errors below this are drawn as right


def _style():
    import matplotlib.pyplot as plt

    from kernels.lab.figures import style

    return plt, style


def error_map(
    errors,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    tolerance: float,
):
    """A cell for each part of the result: its absolute error, hatched where it is not finite.

    errors: [rows, columns]; NaN where the answer or the expected value alone is not finite.
    """
    plt, style = _style()
    errors = np.asarray(errors, dtype=float)
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.4 + (0.42 if len(rows) < 9 else 0.25) * len(rows)))
    bad = ~(errors <= tolerance)
    for row, column in np.ndindex(errors.shape):
        value, wrong = errors[row, column], bad[row, column]
        ax.add_patch(
            plt.Rectangle(
                (column - 0.46, row - 0.42),
                0.92,
                0.84,
                linewidth=0.8,
                edgecolor=style.MUTED,
                facecolor="none" if not wrong else "#f6d5c3",
                hatch="////" if value != value else None,
            )
        )
        if value != value:
            text = "not finite"
        else:
            text = "ok" if not wrong else f"{value:.0e}" if value < 1e-2 else f"{value:.3g}"
        ax.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            fontsize=8.5,
            color=style.INK,
            fontweight="bold" if wrong else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if value != value else None,
        )
    ax.set(
        xlim=(-0.6, errors.shape[1] - 0.4),
        ylim=(errors.shape[0] - 0.4, -0.6),
        xlabel=x_label,
        ylabel=y_label,
        title=title,
    )
    ax.set_xticks(range(len(columns)), columns, fontsize=8)
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(visible=False)
    wrong_rows = [rows[i] for i in range(len(rows)) if bad[i].any()]
    share = f"{int(bad.sum())} of {bad.size} parts are wrong"
    worst = (
        "some are not finite" if np.isnan(errors).any() else f"the largest error is {np.nanmax(errors):.3g}"
    )
    alt = (
        f"Map of the error by {y_label} and {x_label}: {share}, {worst}; wrong rows: "
        f"{'; '.join(wrong_rows[:6])}."
    )
    return fig, alt


def values_and_expected(got, expected, *, title: str, x_label: str, y_label: str):
    """What came beside what was expected, place by place; values that are not finite sit on the axis."""
    plt, style = _style()
    got, expected = np.asarray(got, dtype=float), np.asarray(expected, dtype=float)
    fig, ax = plt.subplots(figsize=(style.WIDTH, 2.7))
    place = np.arange(len(expected))
    finite = np.isfinite(expected)
    ax.scatter(
        place[finite],
        expected[finite],
        s=60,
        facecolors="none",
        edgecolors=style.BLUE,
        linewidths=1.6,
        label="expected",
    )
    right = np.isfinite(got) & finite
    ax.scatter(place[right], got[right], s=18, color=style.VERMILLION, marker="x", label="got")
    low = np.nanmin(np.concatenate([expected[finite], got[right], [0.0]]))
    for i in place:
        if not finite[i] or not np.isfinite(got[i]):
            fine = expected[i] == got[i] or (np.isnan(expected[i]) and np.isnan(got[i]))
            ax.annotate(
                f"{got[i]:.3g}" if fine else f"{got[i]:.3g}, not {expected[i]:.3g}",
                (i, low),
                rotation=90,
                fontsize=8,
                ha="center",
                va="bottom",
                color=style.MUTED if fine else style.readable(style.VERMILLION),
                fontweight="normal" if fine else "bold",
            )
    ax.set(title=title, xlabel=x_label, ylabel=y_label)
    ax.legend(loc="upper right", ncols=2, fontsize=8.5)
    with np.errstate(invalid="ignore"):
        close = np.isclose(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    wrong = place[~close]
    places = ", ".join(map(str, wrong[:8])) + (" and more" if len(wrong) > 8 else "")
    alt = (
        f"Expected and returned {y_label} by {x_label}: {len(wrong)} of {len(place)} differ, at "
        f"{places or 'none'}."
    )
    return fig, alt


def coverage(tiles: int, ranges: Sequence[tuple[int, int]], *, title: str):
    """A strip of tiles coloured by the split that takes them; untaken ones hatched, doubled ones marked."""
    plt, style = _style()
    palette = [style.SKY, style.ORANGE, style.GREEN, style.YELLOW, style.PURPLE, style.BROWN]
    owners: list[list[int]] = [[] for _ in range(tiles)]
    outside = 0
    for split, (first, last) in enumerate(ranges):
        for tile in range(first, min(last, first + 4 * tiles + 4)):
            if 0 <= tile < tiles:
                owners[tile].append(split)
            else:
                outside += 1
    columns = min(max(tiles, 1), 33)
    lines = max(1, -(-tiles // columns))
    fig, ax = plt.subplots(figsize=(style.WIDTH, 0.9 + 0.5 * lines))
    for tile, who in enumerate(owners):
        x, y = tile % columns, tile // columns
        face = palette[who[0] % len(palette)] if who else "none"
        ax.add_patch(
            plt.Rectangle(
                (x, y),
                0.92,
                0.85,
                facecolor=face,
                linewidth=2.2 if len(who) > 1 else 0.8,
                edgecolor=style.VERMILLION if len(who) != 1 else style.MUTED,
                hatch=None if who else "////",
            )
        )
        text = "–" if not who else "+".join(map(str, who[:2]))
        ax.text(x + 0.46, y + 0.43, text, ha="center", va="center", fontsize=8, color="black")
    ax.set(xlim=(-0.2, columns + 0.2), ylim=(lines + 0.1, -0.1), title=title)
    ax.set_axis_off()
    lost = [tile for tile, who in enumerate(owners) if not who]
    twice = [tile for tile, who in enumerate(owners) if len(who) > 1]
    alt = (
        f"Strip of {tiles} tiles, each marked with the split that takes it. Taken by nobody: "
        f"{_some(lost)}; taken more than once: {_some(twice)}; ranges reach past the row: "
        f"{'yes' if outside else 'no'}."
    )
    return fig, alt


def _some(places: Sequence[int]) -> str:
    if not places:
        return "none"
    return ", ".join(map(str, places[:8])) + (f" and {len(places) - 8} more" if len(places) > 8 else "")


def curves(
    x,
    lines: dict[str, Sequence[float]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = True,
    steps: bool = False,
    alt: str = "",
):
    """A few named lines over the same x, the first one emphasised; names are written at the lines' ends.

    alt: what the picture shows beyond its axes.
    """
    plt, style = _style()
    fig, ax = plt.subplots(figsize=(style.WIDTH, 3.1))
    looks = [(style.VERMILLION, "o", "-", 2.2), (style.BLUE, "s", "--", 1.5), (style.GREEN, "^", ":", 1.7)]
    ends = []
    for (name, values), (tint, marker, dash, width) in zip(lines.items(), looks, strict=False):
        ax.plot(
            x,
            values,
            color=tint,
            marker=None if steps else marker,
            linestyle=dash,
            linewidth=width,
            drawstyle="default",
            markersize=4.5,
        )
        ends.append((name, x[-1], values[-1], tint))
    if log:
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.xaxis.set_major_formatter(style.plain_number)
        ax.yaxis.set_major_formatter(style.plain_number)
    ax.set(title=title, xlabel=x_label, ylabel=y_label)
    style.label_ends(ax, ends)
    names = ", ".join(lines)
    return fig, f"{y_label} over {x_label}: {names}. {alt}".strip()


def rows_in_memory(wrong, *, title: str, width_label: str):
    """Rows of a result as a reader of the original stride finds them.

    wrong: bool [rows, segments], True where a segment differs from what must stand there.
    """
    plt, style = _style()
    wrong = np.asarray(wrong, dtype=bool)
    rows, segments = wrong.shape
    fig, ax = plt.subplots(figsize=(style.WIDTH, 1.2 + 0.45 * rows))
    for row, segment in np.ndindex(wrong.shape):
        bad = wrong[row, segment]
        ax.add_patch(
            plt.Rectangle(
                (segment, row),
                0.96,
                0.84,
                facecolor="#f6d5c3" if bad else style.SKY,
                hatch="////" if bad else None,
                edgecolor="white",
                linewidth=0.5,
            )
        )
    ax.set(xlim=(-0.1, segments + 0.1), ylim=(rows, -0.15), title=title, xlabel=width_label)
    ax.set_yticks([row + 0.42 for row in range(rows)], [f"row {row}" for row in range(rows)])
    ax.set_xticks([])
    ax.grid(visible=False)
    broken = [str(row) for row in range(rows) if wrong[row].any()]
    alt = (
        f"Rows as the reader with the old stride sees them: wrong are rows {', '.join(broken) or 'none'} "
        f"of {rows}."
    )
    return fig, alt
