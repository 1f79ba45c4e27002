"""Launches of a decode step, counted on any machine: what PyTorch would start, and what our operators
declare.

A fused function counts as one launch, the least that a compiler can make of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

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
    """Counts while it is entered; a listener of `kernels.decode_step.ranges`."""

    def __init__(self):
        super().__init__()
        self.counts: Counter = Counter()
        self._open: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[-1]
        if name not in VIEWS and not any(declared for _, declared in self._open):
            self.counts[self._open[-1][0] if self._open else "glue", name] += 1
        return function(*args, **(kwargs or {}))

    def enter(self, group: str, launches: int | None) -> None:
        """A range opens; with `launches` declared, what happens inside is not counted."""
        if launches:
            self.counts[group, "operator"] += launches
        self._open.append((group, launches is not None))

    def leave(self, group: str) -> None:
        """The range closes."""
        self._open.pop()


class _OneLaunchEach:
    """Glue whose every function counts as one launch."""

    def __init__(self, counter: LaunchCounter, glue):
        self._counter, self._glue = counter, glue

    def __getattr__(self, name):
        function = getattr(self._glue, name)

        def call(*arguments):
            group = self._counter._open[-1][0] if self._counter._open else "glue"
            self._counter.enter(group, 1)
            try:
                return function(*arguments)
            finally:
                self._counter.leave(group)

        return call


def _rows(counts: Counter) -> list[dict[str, Any]]:
    return [
        {"group": group, "kernel": name, "launches": count} for (group, name), count in counts.most_common()
    ]


def counted(step, ratios: tuple[int, ...] | None = None) -> list[dict[str, Any]]:
    """Run a step and count: rows with group, kernel (the operation) and launches.

    ratios: the layers to count for, instead of the step's own: each kind that occurs must be among the step's
    layers. `decode_step.flash().ratios` gives the real model's count from a shrunken step.

    Raises:
        ValueError: a kind of layer that the step lacks.
    """
    from kernels.decode_step import layers, ranges
    from kernels.decode_step.glue import Glue
    from kernels.decode_step.probe import Probe
    from kernels.decode_step.shapes import KINDS

    run = step.inner
    kinds = [KINDS[ratio] for ratio in ratios] if ratios is not None else list(run.shapes.kinds)
    missing = sorted(set(kinds) - set(run.shapes.kinds))
    if missing:
        raise ValueError(
            f"ratios: got layers of kind {', '.join(missing)}, accepted is {set(run.shapes.kinds)}"
        )
    counter = LaunchCounter()
    kept = run.glue, run.probe
    run.probe = Probe()
    if step.stage.fused:
        plain = Glue(False, run.state.device.type)
        run.glue = _OneLaunchEach(counter, plain)
    per_kind: dict[str, Counter] = {}
    ranges.listeners.append(counter)
    try:
        with torch.no_grad(), counter:
            step.prepare()
            streams = layers.embed(run)
            for number, kind in reversed(list(enumerate(run.shapes.kinds))):
                before = Counter(counter.counts)
                for sublayer in layers.SUBLAYERS:
                    streams = sublayer(run, number, streams)
                per_kind[kind] = counter.counts - before
                counter.counts = before
            layers.head(run, streams)
    finally:
        ranges.listeners.remove(counter)
        run.glue, run.probe = kept
    for kind in kinds:
        counter.counts.update(per_kind[kind])
    return _rows(counter.counts)
