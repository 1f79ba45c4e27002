"""Figures and tables of the book: one visual language, the evidence in every one of them."""

from kernels.lab.figures.bars import ratio_bars, share_bars, waterfall
from kernels.lab.figures.plots import heat_map, lines, not_recorded, scatter_prediction, series
from kernels.lab.figures.style import STYLES, apply, colour, finish, svg
from kernels.lab.figures.tables import table

__all__ = [
    "STYLES",
    "apply",
    "colour",
    "finish",
    "heat_map",
    "lines",
    "not_recorded",
    "ratio_bars",
    "scatter_prediction",
    "series",
    "share_bars",
    "svg",
    "table",
    "waterfall",
]
