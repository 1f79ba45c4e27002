"""The combine's launch beside the split kernel's: overlapped (programmatic dependent launch) or in turn."""

from __future__ import annotations

from unittest import mock

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from kernels.lab import experiments
from kernels.lab.compile import compile_many, make_request
from kernels.lab.figures import style
from kernels.lab.figures.diagrams.parts import arrow, box, canvas, say
from kernels.sparse_mla import launch
from kernels.sparse_mla.tiles import Tile

EXPERIMENT = "launch_overlap"
IN_TURN = "split_k_in_turn"
MARKS = {"wait": "griddepcontrol.wait", "start the next": "griddepcontrol.launch_dependents"}


def instructions(tile: Tile, target: str = "sm_120") -> pd.DataFrame:
    """Columns kernel, overlap, and one count for each of `MARKS`, read from the PTX of both kernels.

    Raises:
        RuntimeError: a kernel does not compile for the target.
    """
    asked = [(impl, overlap) for impl in ("split_k", "combine") for overlap in (True, False)]
    requests = [make_request("sparse_mla", impl, tile, target, overlap=overlap) for impl, overlap in asked]
    rows = []
    for (impl, overlap), compiled in zip(asked, compile_many(requests), strict=True):
        if not compiled.ok:
            raise RuntimeError(f"{impl} for {target}: {compiled.error}")
        found = {name: compiled.ptx.count(mark) for name, mark in MARKS.items()}
        rows.append({"kernel": impl, "overlap": overlap, **found})
    return pd.DataFrame(rows)


def measure(profile: str) -> list[dict]:
    """Rows: impl 'split_k' as launched, impl 'split_k_in_turn' with the overlap switched off."""
    batches = {"quick": (1, 16), "full": (1, 4, 16, 64)}[profile]
    splits = {"quick": (8, 4), "full": (8, 8, 4, 2)}[profile]
    points = [
        experiments.Point("sparse_mla_decode", "split_k", batch, tile_class="sm120", num_splits=count)
        for batch, count in zip(batches, splits, strict=True)
    ]
    rows = experiments.measure_points(points)
    with mock.patch.object(launch, "can_overlap", lambda tensor: False):
        rows += [{**row, "impl": IN_TURN} for row in experiments.measure_points(points)]
    return rows


experiments.register(EXPERIMENT, measure)


def timeline() -> Figure:
    """The two launches in turn and overlapped, not to scale: which part of the second one is hidden."""
    fig, ax = canvas(3.0, (-3.4, 14.6), (-0.6, 7.2))
    for y, title, start in ((4.2, "in turn", 8.2), (0.6, "overlapped", 5.9)):
        say(ax, -3.4, y + 0.9, title, bold=True, size=10)
        box(ax, 0, y + 1.0, 7.6, 0.9, style.SKY, "split kernel: blocks end one by one", size=9)
        box(ax, start, y, 1.8, 0.9, style.GREY, "start", ink="white", size=9)
        box(ax, start + 1.8, y, 2.6, 0.9, style.ORANGE, "merge", size=9)
        ax.plot([start + 4.4] * 2, [y - 0.25, y + 2.0], color=style.MUTED, linewidth=1, linestyle=(0, (3, 3)))
    ax.plot([7.6, 7.6], [0.2, 6.2], color=style.INK, linewidth=0.9, zorder=0)
    say(ax, 7.75, 6.7, "last partial is written", size=8.5, colour=style.MUTED)
    arrow(ax, (12.6, 3.4), (10.3, 3.4), colour=style.BLUE)
    say(ax, 12.75, 3.4, "saved", size=9, colour=style.BLUE, bold=True)
    plt.close(fig)
    return fig
