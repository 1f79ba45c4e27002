"""Launches of a decode step, counted on any machine: what PyTorch would start, and what our operators
declare.

A fused function counts as one launch, the least that a compiler can make of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that start no kernel: views, and memory without content
VIEWS = set(
    [
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "expand",
        "lift_fresh",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
    ]
)


class LaunchCounter(TorchDispatchMode):
    """Counts while it is entered; a listener of `kernels.decode_step.ranges`.

    counts: (group, operation, glue function or '') -> launches. calls: glue function -> calls.
    """

    def __init__(self):
        super().__init__()
        self.counts: Counter = Counter()
        self.calls: Counter = Counter()
        self.function = ""
        self._open: list[tuple[str, bool]] = []

    @property
    def group(self) -> str:
        return self._open[-1][0] if self._open else "glue"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[-1]
        if name not in VIEWS and not any(declared for _, declared in self._open):
            self.counts[self.group, name, self.function] += 1
        return function(*args, **(kwargs or {}))

    def enter(self, group: str, launches: int | None) -> None:
        """A range opens; with `launches` declared, what happens inside is not counted."""
        if launches:
            self.counts[group, "operator", self.function] += launches
        self._open.append((group, launches is not None))

    def leave(self, group: str) -> None:
        """The range closes."""
        self._open.pop()


class _WatchedGlue:
    """Glue that tells the counter which function runs; with `one_each`, every call is one launch."""

    def __init__(self, counter: LaunchCounter, glue, one_each: bool):
        self._counter, self._glue, self._one_each = counter, glue, one_each

    def __getattr__(self, name):
        function, counter = getattr(self._glue, name), self._counter

        def call(*arguments):
            counter.calls[name] += 1
            counter.function, group = name, counter.group
            counter.enter(group, 1 if self._one_each else None)
            try:
                return function(*arguments)
            finally:
                counter.leave(group)
                counter.function = ""

        return call


def _count(step, ratios: tuple[int, ...] | None) -> LaunchCounter:
    """Run a step and count for the layers `ratios`; see `counted`."""
    from kernels.decode_step import layers, ranges
    from kernels.decode_step.glue import Glue
    from kernels.decode_step.probe import Probe
    from kernels.decode_step.shapes import KINDS

    run = step.inner
    kinds = [KINDS[ratio] for ratio in ratios] if ratios is not None else list(run.shapes.kinds)
    missing = sorted(set(kinds) - set(run.shapes.kinds))
    if missing:
        known = ", ".join(sorted(set(run.shapes.kinds)))
        raise ValueError(f"ratios: got layers of kind {', '.join(missing)}, accepted are the step's: {known}")
    counter = LaunchCounter()
    kept = run.glue, run.probe
    run.probe = Probe()
    run.glue = _WatchedGlue(counter, Glue(False, run.state.device.type), step.stage.fused)
    per_kind: dict[str, tuple[Counter, Counter]] = {}
    ranges.listeners.append(counter)
    try:
        with torch.no_grad(), counter:
            step.prepare()
            streams = layers.embed(run)
            for number, kind in enumerate(run.shapes.kinds):
                before = Counter(counter.counts), Counter(counter.calls)
                for sublayer in layers.SUBLAYERS:
                    streams = sublayer(run, number, streams)
                per_kind[kind] = counter.counts - before[0], counter.calls - before[1]
                counter.counts, counter.calls = before
            layers.head(run, streams)
    finally:
        ranges.listeners.remove(counter)
        run.glue, run.probe = kept
    for kind in kinds:
        counter.counts.update(per_kind[kind][0])
        counter.calls.update(per_kind[kind][1])
    return counter


def counted(step, ratios: tuple[int, ...] | None = None) -> list[dict[str, Any]]:
    """Run a step and count: rows with group, kernel (the operation) and launches.

    ratios: the layers to count for, instead of the step's own: each kind that occurs must be among the step's
    layers. `decode_step.flash().ratios` gives the real model's count from a shrunken step.

    Raises:
        ValueError: a kind of layer that the step lacks.
    """
    summed: Counter = Counter()
    for (group, name, _), count in _count(step, ratios).counts.items():
        summed[group, name] += count
    return [
        {"group": group, "kernel": name, "launches": count} for (group, name), count in summed.most_common()
    ]


def by_function(step, ratios: tuple[int, ...] | None = None) -> pd.DataFrame:
    """Calls, launches and launches a call of each glue function, the largest first; see `counted`."""
    counter = _count(step, ratios)
    launches: Counter = Counter()
    for (_, _, function), count in counter.counts.items():
        launches[function] += count
    rows = [
        {"function": name, "calls": calls, "launches": launches[name], "each": launches[name] / calls}
        for name, calls in counter.calls.items()
    ]
    return pd.DataFrame(rows).sort_values("launches", ascending=False).reset_index(drop=True)


def by_stage(step, stages, ratios: tuple[int, ...] | None = None) -> pd.DataFrame:
    """Launches by group (columns) at each stage (column `stage`); arguments as `counted`."""
    from kernels.lab.profile import GROUPS, by_group

    rows = []
    for stage in stages:
        groups = by_group(counted(step.at_stage(stage), ratios))["launches"]
        rows.append({"stage": stage, **{group: int(groups.get(group, 0)) for group in GROUPS}})
    frame = pd.DataFrame(rows)
    return frame.assign(all=frame[list(GROUPS)].sum(axis=1))


@dataclass(frozen=True)
class Measured:
    """Rows of a table and where they come from."""

    rows: pd.DataFrame
    evidence: Any


def measured_glue(lab, stages=("bf16_gemm", "fused_glue")) -> Measured:
    """Glue as profiled at each stage and batch: launches, ms and share, at the largest configured context."""
    columns = ["stage", "batch", "launches", "ms", "share"]
    rows, evidence = lab.results("decode_step_profile")
    rows = rows[(rows["status"] == "ok") & (rows["group"] == "glue") & rows["stage"].isin(list(stages))]
    if rows.empty:
        return Measured(pd.DataFrame(columns=columns), evidence)
    rows = rows[rows["max_context"] == rows["max_context"].max()]
    summed = rows.groupby(["batch", "stage"], sort=True)[["launches", "gpu_us", "share"]].sum().reset_index()
    return Measured(summed.assign(ms=summed["gpu_us"] / 1e3)[columns], evidence)
