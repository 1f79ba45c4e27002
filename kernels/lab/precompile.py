"""Compiles, in parallel processes, what experiments will launch one after the other: `measure --precompile`.

Triton and Inductor keep what they compile on disk, so a measuring process finds it there. Compiling needs a core and
not the clock: without this step, most of a first run on a machine of many cores is one core compiling.
"""

import multiprocessing
import os
import sys
import time
from dataclasses import astuple, dataclass, replace

from kernels.lab.experiments import catalogue, decode_step
from kernels.lab.experiments.point import Point
from kernels.sparse_mla.plan import SPLITTING

BATCH = 2  # the code does not depend on it; 1 would be specialised away
TOKENS = 16_384


@dataclass(frozen=True)
class Task:
    """One process's work: a sparse-MLA point ("sparse" or the experiment's own builder), or a batch of the step."""

    kind: str
    point: Point | None = None
    batch: int = 0

    def __str__(self):
        if self.point is None:
            return f"{self.kind}, batch {self.batch}"
        return f"{self.kind}: {self.point.impl} {self.point.tile or ''} {self.point.heads} heads, K = {self.point.topk}"


def _same_code(point: Point, planned) -> Point:
    """The point that stands for all whose kernels are the same: plan made explicit, batch and timers dropped."""
    plan = planned(point)
    splits = plan.num_splits if plan.impl in SPLITTING else None
    return replace(
        point,
        impl=plan.impl,
        batch=BATCH,
        tile=astuple(plan.tile),
        num_splits=splits,
        timers=("chain",),
        stage="",
    )


def tasks(names, profile: str, planned) -> list[Task]:
    """Every distinct compilation that the named experiments need and that is worth a process.

    planned: point -> Plan, the launcher's choice on the device (`sparse.planned`).
    """
    found: dict[str, Task] = {}
    for name in names:
        if name in (decode_step.TIMES, decode_step.PROFILE):
            new = [
                Task("decode_step", batch=batch) for batch in {s.batch for s in decode_step.shapes(profile)}
            ]
        elif name in catalogue.CATALOGUE:
            experiment = catalogue.CATALOGUE[name]
            ours = [
                p for p in experiment.points(profile) if p.op == "sparse_mla_decode" and p.impl != "flash_mla"
            ]
            if experiment.module:
                new = [Task(experiment.module, replace(point, batch=BATCH)) for point in ours]
            else:
                new = [Task("sparse", _same_code(point, planned)) for point in ours]
        else:
            new = []
        found |= {repr(task): task for task in new}
    # The step's graphs take longest: begin with them
    return sorted(found.values(), key=lambda task: (task.kind != "decode_step", repr(task)))


def compile_one(task: Task) -> str | None:
    """Compile one task's kernels by running them once at a small size; what went wrong, or None."""
    import importlib

    import torch

    try:
        if task.kind == "decode_step":
            from kernels.decode_step import build

            step = build("fused_glue", batch=task.batch, context=8192, max_context=8192, device="cuda")
            step.forward()
        else:
            module = importlib.import_module(f"kernels.lab.experiments.{task.kind}")
            module.build(task.point, "cuda", sets=1, pool_tokens=TOKENS).calls[0]()
        torch.cuda.synchronize()
    except Exception as error:  # the experiment will say so in its row
        return f"{task}: {type(error).__name__}: {str(error)[:200]}"
    return None


def run(names, profile: str, processes: int | None = None) -> None:
    """Compile everything that the experiments need, on all cores but one; says how long it took."""
    from kernels.lab.experiments import sparse

    begun = time.perf_counter()
    work = tasks(names, profile, lambda point: sparse.planned(point, "cuda"))
    processes = processes or max(1, (os.cpu_count() or 2) - 1)
    with multiprocessing.get_context("spawn").Pool(min(processes, max(1, len(work)))) as pool:
        for problem in filter(None, pool.imap_unordered(compile_one, work)):
            print(f"precompile: {problem}", file=sys.stderr)
    print(f"precompiled {len(work)} kernels' variants in {time.perf_counter() - begun:.0f} s", flush=True)
