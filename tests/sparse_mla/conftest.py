"""Where a test runs, and the table of cases tried for each class of faults.

With `-m gpu`, or where $FAULT_REPORT is set, the run ends with the table; $FAULT_REPORT names a file for it.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture
def tally(request):
    """`tally(fault_class, cases, failures=None)`: counts for the table; None: one if the test fails."""

    def add(fault_class: str, cases: int = 1, failures: int | None = None):
        request.node.user_properties.append(("fault_class", [fault_class, cases, failures]))

    return add


def fault_table(reports) -> str:
    """'fault class | cases | failures' over test reports, sorted by class."""
    counts = defaultdict(lambda: [0, 0])
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "fault_class" and report.when == "call":
                fault_class, cases, failures = value
                counts[fault_class][0] += cases
                counts[fault_class][1] += int(report.failed) if failures is None else failures
    width = max([11, *map(len, counts)])
    lines = [f"{'fault class':{width}} | {'cases':>8} | failures", f"{'-' * width}-+-{'-' * 8}-+---------"]
    for fault_class in sorted(counts):
        lines.append(f"{fault_class:{width}} | {counts[fault_class][0]:8,} | {counts[fault_class][1]:8,}")
    total = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0]
    lines.append(f"{'total':{width}} | {total[0]:8,} | {total[1]:8,}")
    return "\n".join(lines)


def pytest_terminal_summary(terminalreporter, config):
    path = os.environ.get("FAULT_REPORT")
    if not path and config.getoption("markexpr", "") != "gpu":
        return
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, ())]
    table = fault_table(reports)
    if path:
        Path(path).write_text(table + "\n")
    terminalreporter.section("faults")
    terminalreporter.write_line(table)
