"""One visual language: a colour, a marker and a dash per implementation and stage, through the whole book.

Colours are Okabe and Ito's (colour-blind safe). Identity never rests on colour alone: lines also differ in
marker and dash and carry direct labels. The page has no background of its own: text is dark on transparent,
and the site's style sheet inverts lightness (not hue) in dark mode.
"""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass

import matplotlib
import matplotlib.colors
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kernels.lab.evidence import Evidence

INK = "#24292f"
MUTED = "#5f6b76"
RULE = "#c9d1d9"
WIDTH = 7.2

BLACK, GREY = "#24292f", "#8a8f98"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#C7B400"
BLUE, VERMILLION, PURPLE, BROWN = "#0072B2", "#D55E00", "#CC79A7", "#8C5A2B"


@dataclass(frozen=True)
class Look:
    """How one implementation or stage is drawn and named."""

    label: str
    colour: str
    marker: str = "o"
    dash: str = "-"

    @property
    def ink(self) -> str:
        """The colour for text: as dark as a contrast of 4.5 on white needs."""
        return readable(self.colour)


def readable(tint: str, contrast: float = 4.55) -> str:
    """`tint` darkened until text in it has the contrast on a white page."""
    rgb = matplotlib.colors.to_rgb(tint)
    for step in range(101):
        shade = tuple(channel * (1 - step / 100) for channel in rgb)
        if 1.05 / (_luminance(shade) + 0.05) >= contrast:
            break
    return matplotlib.colors.to_hex(shade)


def _luminance(rgb) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(tint) -> str:
    """'black' or 'white', whichever reads better on `tint` (anything that matplotlib takes as a colour)."""
    light = _luminance(matplotlib.colors.to_rgb(tint))
    return "white" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "black"


STYLES: dict[str, Look] = {
    # sparse MLA decode
    "serial": Look("serial tokens", GREY, "v", ":"),
    "simt": Look("per-head SIMT", VERMILLION, "s", "--"),
    "mma": Look("MMA", ORANGE, "D", "-."),
    "split_k": Look("split-K", SKY, "^", "-"),
    "split_k_fp32": Look("split-K, fp32 scratch", BROWN, "d", "--"),
    "split_k_campaign": Look("split-K, campaign's policy", SKY, "v", "--"),
    "split_k_in_turn": Look("split-K, launches in turn", SKY, "<", ":"),
    # On a GPU `auto` chooses the staged rung: one colour, told apart by marker and dash.
    "staged": Look("staged", BLUE, "h", "-."),
    "auto": Look("auto", BLUE, "o", "-"),
    "auto_sm120": Look("auto within sm_120", GREEN, "P", "-"),
    "flash_mla": Look("FlashMLA", PURPLE, "X", "--"),
    # indexer
    "uncapped": Look("uncapped", VERMILLION, "s", "--"),
    "capped": Look("capped", ORANGE, "D", "-."),
    "paged": Look("paged", BLUE, "o", "-"),
    "deep_gemm": Look("DeepGEMM", PURPLE, "X", "--"),
    "torch": Look("torch.topk", GREY, "v", ":"),
    "radix": Look("radix top-k", BLUE, "o", "-"),
    # the campaign's stages
    "baseline": Look("baseline", VERMILLION, "s", "--"),
    "indexer_cap": Look("indexer cap", GREEN, "P", "-"),
    "bf16_gemm": Look("bf16 GEMM", YELLOW, "*", "-."),
    "fused_glue": Look("fused glue", BLUE, "o", "-"),
    # parts of a decode step
    "attention": Look("attention", VERMILLION, "s"),
    "indexer": Look("indexer", GREEN, "P"),
    "glue": Look("glue", GREY, "v"),
    "gemm": Look("GEMMs", BLUE, "o"),
    "gemm_fp32": Look("FP32 GEMMs", SKY, "^"),
    "experts": Look("experts", BLACK, "D"),
    "combine": Look("combine", BROWN, "d"),
    "topk": Look("top-k", YELLOW, "*"),
    "other": Look("other", "#b7bcc4", "."),
    # models and limits
    "roofline": Look("roofline", BLACK, "", ":"),
    "predicted": Look("predicted", BROWN, "d", "--"),
    "measured": Look("measured", BLUE, "o"),
}
_SPARE = [BROWN, GREEN, PURPLE, SKY, YELLOW, BLACK]
SEQUENTIAL = "cividis"


def look(key: str) -> Look:
    """The look of `key`; an unknown key gets a stable one of the spare colours."""
    if key in STYLES:
        return STYLES[key]
    return Look(str(key), _SPARE[sum(map(ord, str(key))) % len(_SPARE)])


def colour(key: str) -> str:
    """The colour of an implementation, a stage or a part of the decode step."""
    return look(key).colour


def apply() -> None:
    """Set matplotlib's defaults for the book; harmless when called again."""
    matplotlib.rcParams.update(
        {
            "figure.figsize": (WIDTH, 3.8),
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "figure.constrained_layout.use": True,
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": MUTED,
            "axes.labelcolor": INK,
            "axes.titlecolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": RULE,
            "grid.linewidth": 0.6,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "lines.linewidth": 1.9,
            "lines.markersize": 5.5,
            "legend.frameon": False,
            "svg.fonttype": "path",
            "svg.hashsalt": "kernels",
        }
    )


def plain_number(value: float, _position: int | None = None) -> str:
    """4096 -> '4,096', 0.25 -> '0.25', 1048576 -> '1M' (only exact binary multiples from 8K are
    shortened).
    """
    if value >= 8192 and value == int(value):
        for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
            if value % unit == 0:
                return f"{int(value) // unit:,}{name}"
    if value >= 1e6 and value % 1e5 == 0:
        return f"{value / 1e6:g}M"
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def log_axis(ax, axis: str = "both", x_values=None, base: int = 10) -> None:
    """Make an axis logarithmic with plain numbers.

    axis: 'x', 'y' or 'both'. x_values: the exact ticks of x, such as the batch sizes that were measured.
    """
    if axis in ("x", "both"):
        ax.set_xscale("log", base=2 if x_values is not None else base)
        if x_values is not None:
            ax.set_xticks(list(x_values), [plain_number(value) for value in x_values])
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.xaxis.minorticks_off()
        else:
            _few_decades(ax.xaxis, ax.get_xlim())
    if axis in ("y", "both"):
        ax.set_yscale("log")
        _few_decades(ax.yaxis, ax.get_ylim())


def _few_decades(axis, limits) -> None:
    """Plain numbers; where the axis spans less than 2.5 decades 2 and 5 are labelled too."""
    low, high = limits
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(plain_number))
    axis.set_minor_formatter(NullFormatter())


def label_ends(ax, ends: list[tuple[str, float, float, str]], gap_points: float = 11.5) -> None:
    """Write each line's name beside its last point, moved apart where they would overlap.

    ends: (text, x, y, colour) in data units. gap_points: least vertical distance between labels.
    """
    if not ends:
        return
    ax.figure.canvas.draw()
    scale = ax.figure.dpi / 72
    placed = sorted(
        ([ax.transData.transform((x, y))[1] / scale, text, x, y, tint] for text, x, y, tint in ends),
        key=lambda entry: entry[0],
    )
    wanted = [entry[0] for entry in placed]
    heights = list(wanted)
    for _ in range(60):  # push neighbours apart symmetrically until none is closer than the gap
        for lower in range(len(heights) - 1):
            short = gap_points - (heights[lower + 1] - heights[lower])
            if short > 0.01:
                heights[lower] -= short / 2
                heights[lower + 1] += short / 2
    for entry, height, original in zip(placed, heights, wanted, strict=True):
        _, text, x, y, tint = entry
        ax.annotate(
            text,
            (x, y),
            xytext=(9, height - original),
            textcoords="offset points",
            color=readable(tint),
            va="center",
            fontsize=9,
            fontweight="bold",
            annotation_clip=False,
        )


def finish(fig: Figure, evidence: Evidence | None = None) -> Figure:
    """Put the evidence line under the figure, once; returns the figure.

    evidence: None for a diagram or for exact arithmetic.
    """
    if evidence is None or getattr(fig, "_evidence_line", None):
        return fig
    text = f"{evidence.mark} {evidence.line()}"
    wrapped = textwrap.fill(text, width=int(fig.get_figwidth() * 15.5))
    fig.text(
        0.008,
        -0.14 / fig.get_figheight(),
        wrapped,
        ha="left",
        va="top",
        fontsize=8,
        color=readable(VERMILLION) if evidence.stale else MUTED,
    )
    fig._evidence_line = evidence.line()
    return fig


def svg(fig: Figure, description: str | None = None) -> str:
    """The figure as an SVG text without date, so that the same data gives the same bytes.

    description: kept in the file. By default the evidence line, since the drawn one is an outline that no
    screen reader sees.
    """
    about = {"Date": None, "Description": description or getattr(fig, "_evidence_line", None)}
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.06, metadata=about)
    return buffer.getvalue()
