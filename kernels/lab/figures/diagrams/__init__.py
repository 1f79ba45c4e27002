"""Diagrams drawn from code: each function returns a Figure and takes the numbers that it draws."""

from kernels.lab.figures.diagrams.budget import shared_memory_budget
from kernels.lab.figures.diagrams.grid import grid_and_sms
from kernels.lab.figures.diagrams.labour import divided_labour
from kernels.lab.figures.diagrams.operands import operand_lanes
from kernels.lab.figures.diagrams.page import page_layout
from kernels.lab.figures.diagrams.split import split_and_combine
from kernels.lab.figures.diagrams.wasted import wasted_area

__all__ = [
    "divided_labour",
    "grid_and_sms",
    "operand_lanes",
    "page_layout",
    "shared_memory_budget",
    "split_and_combine",
    "wasted_area",
]
