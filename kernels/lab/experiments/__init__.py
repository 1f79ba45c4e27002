"""The book's experiments by name. `results` measures on a GPU and reads the newest record elsewhere.

The same DataFrame comes out of both: the columns of measurements.csv, with rows that say why they hold no
    time.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from kernels.lab import evidence as proof
from kernels.lab import records
from kernels.lab.evidence import Evidence
from kernels.lab.experiments.catalogue import CATALOGUE, Experiment
from kernels.lab.experiments.point import Point
from kernels.lab.records import schema

Measure = Callable[[str], list[dict[str, Any]]]
_REGISTERED: dict[str, tuple[str, Measure]] = {}

__all__ = ["CATALOGUE", "Experiment", "Point", "measure_points", "names", "register", "results"]


def register(name: str, measure: Measure, table: str = "measurements") -> None:
    """Add an experiment that measures by itself, such as the decode step's.

    measure: profile -> rows with the table's columns (run_id and experiment are filled in). table:
    'measurements', 'counters' or 'profile'.
    """
    if table not in schema.TABLES:
        raise ValueError(f"table={table!r} is unknown; accepted: {', '.join(schema.TABLES)}")
    _REGISTERED[name] = (table, measure)


def names() -> list[str]:
    """Every experiment that can be asked for."""
    return [*CATALOGUE, *(name for name in _REGISTERED if name not in CATALOGUE)]


def _find(name: str) -> tuple[str, Measure]:
    if name in CATALOGUE:
        found = CATALOGUE[name]
        build = found.module and _build_of(found.module)
        return "measurements", lambda profile: measure_points(found.points(profile), build=build)
    if name in _REGISTERED:
        return _REGISTERED[name]
    raise KeyError(f"experiment={name!r} is unknown; accepted: {', '.join(names())}")


def results(name: str, lab, again: bool = False) -> tuple[pd.DataFrame, Evidence]:
    """(rows, evidence) of an experiment for a chapter. again: measure also what the run has already.

    lab: the chapter's `Lab`; on a GPU its run is opened on first use and the rows are written into it. An
    experiment that an earlier chapter of the same run has measured is read back, not measured twice. Without
    a GPU and without a record the frame is empty and the evidence says so. Experiments named in the variable
    BOOK_SKIP_EXPERIMENTS (separated by commas, or "all") that the run has not measured yet are read from the newest
    record on a GPU, too: for a machine that is at hand for minutes only, and for chapters that run side by side.
    """
    table, measure = _find(name)
    if not lab.on_gpu:
        return recorded(name, table)
    run = lab.run = lab.run or records.open_run(lab.profile)
    if again or not run.has(name):
        if skipped() & {name, "all"}:
            return recorded(name, table)
        begun = time.perf_counter()
        rows = measure(lab.profile)
        frame = schema.frame(rows, table)
        run.put(name, frame, table, chapter=lab.name, seconds=time.perf_counter() - begun)
    df = run.table(table)
    return df[df["experiment"] == name].reset_index(drop=True), measured_here(run)


def skipped() -> set[str]:
    """Experiments that BOOK_SKIP_EXPERIMENTS names: they are not measured in this execution."""
    return {name.strip() for name in os.environ.get("BOOK_SKIP_EXPERIMENTS", "").split(",") if name.strip()}


def recorded(name: str, table: str = "measurements") -> tuple[pd.DataFrame, Evidence]:
    """(rows, evidence) of an experiment from the newest record that holds it."""
    record = records.newest(name, table=table)
    if record is None:
        return schema.frame([], table), proof.missing(f"no run in data/runs holds the experiment {name}")
    return record.rows(name, table), record.evidence()


def measured_here(run) -> Evidence:
    """Evidence for rows of the run that this execution is writing."""
    commit = run.info["git_commit"]
    return Evidence(
        "measured",
        device=run.info["device"]["name"],
        date_utc=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=commit[:7] if commit else None,
    )


def _build_of(module: str):
    """A module's `build`, imported at the first point: kernels must not be, before the device is chosen."""

    def build(point: Point, device: str):
        return importlib.import_module(f"kernels.lab.experiments.{module}").build(point, device)

    return build


def builder(op: str):
    module, function = {
        "sparse_mla_decode": ("sparse", "build"),
        "indexer_logits": ("indexing", "build_logits"),
        "indexer_topk": ("indexing", "build_topk"),
    }[op]
    return getattr(importlib.import_module(f"kernels.lab.experiments.{module}"), function)


def measure_points(
    points: list[Point], samples: int = 21, device: str = "cuda", build: Callable | None = None
) -> list[dict[str, Any]]:
    """Build, check and time every point on this GPU; a point that cannot run becomes rows with the reason.

    samples: at most, a timer. build: (point, device) -> case; by the point's op when None. A point that needs
    more memory than there is, or whose kernel does not compile for the device, is skipped; any other exception
    is a failure that its row names.
    """
    import torch

    from kernels.lab import timing

    rows: list[dict[str, Any]] = []
    for point in points:
        try:
            case = (build or builder(point.op))(point, device)
            rows += timing.measure(case, point.timers, samples)
        except LookupError as error:
            rows += point.skipped(str(error.args[0]))
        except torch.cuda.OutOfMemoryError:
            rows += point.skipped("does not fit into the device's memory")
        except Exception as error:
            if type(error).__name__ == "OutOfResources":
                rows += point.skipped(f"the kernel does not fit on this device: {_clean(error)}")
            else:
                rows += point.skipped(f"{type(error).__name__}: {_clean(error)}", status="failed")
        case = None
    torch.cuda.empty_cache()
    return rows


def _clean(error: Exception) -> str:
    """The first line of an error's message, without anything that looks like a path."""
    text = (str(error).strip().splitlines() or ["no message"])[0][:160]
    return " ".join(word if "/" not in word else "…" for word in text.split())


# Two tables, one pass: the step's times, and the profile of its kernels
from kernels.lab.experiments import decode_step as _decode_step  # noqa: E402

register(_decode_step.TIMES, _decode_step.measure_times)
register(_decode_step.PROFILE, _decode_step.measure_profile, table="profile")
