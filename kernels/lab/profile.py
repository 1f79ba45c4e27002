"""Where a decode step's time goes: its kernels by group, with launches, time and share.

On a GPU the step runs once, eagerly, under torch.profiler (CUPTI). Each kernel belongs to the innermost
range (`kernels.decode_step.ranges`) that was open when it was launched; our own kernels are known by name.
What lies in no range is glue. A kernel takes the same time in a captured graph; the gaps between kernels,
which a graph shortens to about a microsecond each, are in nobody's share.

Without a GPU launches are counted, not timed: PyTorch's operations that start at least one kernel, and the
launches that our operators declare. The count does not depend on the size of the model, only on its layers.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

GROUPS = ("attention", "combine", "indexer", "topk", "gemm_fp32", "gemm", "experts", "glue")
LABELS = {
    "attention": "attention",
    "combine": "combine",
    "indexer": "indexer logits",
    "topk": "top-k",
    "gemm_fp32": "GEMM, FP32",
    "gemm": "GEMM, other",
    "experts": "experts",
    "glue": "glue",
}
OURS = {
    "per_head_kernel": "attention",
    "mma_kernel": "attention",
    "split_k_kernel": "attention",
    "combine_kernel": "combine",
    "paged_logits_kernel": "indexer",
    "fill_tail_kernel": "indexer",
    "select_slices_kernel": "topk",
    "select_candidates_kernel": "topk",
    "sinkhorn_kernel": "glue",
}
GEMM = re.compile(r"gemm|gemv|cutlass|nvjet|xmma|splitk|cublas", re.IGNORECASE)
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")


def short_name(kernel: str) -> str:
    """A kernel's name without return type, namespaces and template arguments, at most 60 characters."""
    name = re.sub(r"^void ", "", kernel)
    name = re.sub(r"[<(].*", "", name)
    return name.split("::")[-1].strip()[:60] or kernel[:60]


def group_of(kernel: str, range_name: str | None, forced_fp32: bool) -> str:
    """The group of a kernel that was launched inside a range (None: outside all).

    forced_fp32: the indexer's PyTorch product runs in FP32, so that it counts as such.
    """
    own = OURS.get(short_name(kernel))
    if own:
        return own
    if range_name == "indexer" and GEMM.search(kernel):
        return "gemm_fp32" if forced_fp32 else "gemm"
    return range_name if range_name in GROUPS else "glue"


def launch_ranges(events: Iterable[dict[str, Any]], prefix: str) -> dict[int, str | None]:
    """Correlation id of each launch in a Chrome trace -> innermost range, without its prefix.

    events: the trace's. A range is a user annotation on the launching thread whose name starts with `prefix`.
    """
    threads: dict[Any, list[tuple[float, int, Any]]] = {}
    for event in events:
        category = event.get("cat")
        if category == "user_annotation" and str(event.get("name", "")).startswith(prefix):
            begin, end = float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0))
            threads.setdefault(event["tid"], []).append((begin, 0, (end, event["name"][len(prefix) :])))
        elif category in LAUNCH_CATEGORIES and "correlation" in event.get("args", {}):
            correlation = int(event["args"]["correlation"])
            threads.setdefault(event["tid"], []).append((float(event["ts"]), 1, correlation))
    found: dict[int, str | None] = {}
    for entries in threads.values():
        stack: list[tuple[float, str]] = []
        for time, kind, what in sorted(entries, key=lambda entry: entry[:2]):
            while stack and stack[-1][0] < time:
                stack.pop()
            if kind == 0:
                stack.append(what)
            else:
                found[what] = stack[-1][1] if stack else None
    return found


def own_times(kernels: list[dict[str, Any]]) -> list[float]:
    """Microseconds of each kernel of a trace that no earlier kernel of its stream was running in, too.

    A combine starts while its attention kernel still runs and waits for it (programmatic dependent launch), if
    the host is fast enough: its duration then holds the other's. Counted once, the sum is the time the GPU was
    busy.
    """
    times = [float(event.get("dur", 0)) for event in kernels]
    ends: dict[Any, float] = {}
    for number in sorted(range(len(kernels)), key=lambda number: float(kernels[number].get("ts", 0))):
        stream = kernels[number].get("args", {}).get("stream")
        if stream is None:
            continue
        begin = float(kernels[number]["ts"])
        end = begin + times[number]
        free = ends.get(stream, begin)
        times[number] = max(0.0, end - max(begin, free))
        ends[stream] = max(free, end)
    return times


def rows_of_trace(events: list[dict[str, Any]], prefix: str, forced_fp32: bool) -> list[dict[str, Any]]:
    """One row a group and kernel: launches, gpu_us (its own), share of all kernels' time; the longest first.

    A kernel whose group differs from its range's carries the range in its name ("indexer: sgemm").

    Raises:
        RuntimeError: the trace holds no kernel, or no kernel's launch.
    """
    ranges = launch_ranges(events, prefix)
    launches: Counter = Counter()
    times: Counter = Counter()
    kernels = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    if not kernels:
        raise RuntimeError("the profiler saw no kernel: CUPTI is not available to this process")
    orphans = 0
    for event, own in zip(kernels, own_times(kernels), strict=True):
        correlation = int(event.get("args", {}).get("correlation", -1))
        orphans += correlation not in ranges
        inside = ranges.get(correlation)
        group = group_of(event["name"], inside, forced_fp32)
        name = short_name(event["name"])
        if inside == "indexer" and group in ("gemm", "gemm_fp32"):
            name = f"indexer: {name}"
        launches[group, name] += 1
        times[group, name] += own
    if orphans == len(kernels):
        raise RuntimeError(f"none of {orphans} kernels has its launch in the trace: no range is known")
    total = sum(times.values())
    return [
        {
            "group": group,
            "kernel": name,
            "launches": launches[group, name],
            "gpu_us": time,
            "share": time / total,
        }
        for (group, name), time in times.most_common()
    ]


def measured(step) -> list[dict[str, Any]]:
    """Profile a step on its GPU: rows as `rows_of_trace` gives them.

    Raises:
        RuntimeError: no CUDA device, or the profiler saw nothing.
    """
    import torch

    from kernels.decode_step.ranges import PREFIX

    if step.state.device.type != "cuda":
        raise RuntimeError("a profile needs a CUDA device; count the launches instead")
    step.forward()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step.forward()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return rows_of_trace(events, PREFIX, step.stage.gemm_dtype == torch.float32)


def by_group(rows) -> pd.DataFrame:
    """A profile summed by group, in the order of `GROUPS`: launches, and gpu_us and share if timed."""
    frame = pd.DataFrame(rows)
    columns = [column for column in ("launches", "gpu_us", "share") if column in frame.columns]
    summed = frame.groupby("group")[columns].sum()
    return summed.reindex([group for group in GROUPS if group in summed.index])


def indexer_share(rows) -> float:
    """The indexer's whole share: logits, their product wherever it is counted, and top-k."""
    frame = pd.DataFrame(rows)
    own = frame["group"].isin(["indexer", "topk"]) | frame["kernel"].str.startswith("indexer: ")
    return float(frame.loc[own, "share"].sum())


def text_table(rows, kernels: int = 12) -> str:
    """The profile as text: the groups, then the `kernels` that take longest (or are launched most often)."""
    groups = by_group(rows)
    timed = "gpu_us" in groups.columns
    lines = [f"{'group':18} {'launches':>9}" + (f" {'µs':>12} {'share':>7}" if timed else "")]
    for group, entry in groups.iterrows():
        line = f"{LABELS[group]:18} {int(entry['launches']):9,}"
        lines.append(line + (f" {entry['gpu_us']:12,.1f} {entry['share']:7.1%}" if timed else ""))
    total = f"{'all':18} {int(groups['launches'].sum()):9,}"
    lines.append(total + (f" {groups['gpu_us'].sum():12,.1f} {1:7.1%}" if timed else ""))
    if timed:
        lines += ["", f"{'kernel':62} {'group':14} {'launches':>9} {'µs':>12} {'share':>7}"]
        lines += [
            f"{row['kernel']:62} {LABELS[row['group']]:14} {row['launches']:9,} {row['gpu_us']:12,.1f} "
            f"{row['share']:7.1%}"
            for row in list(rows)[:kernels]
        ]
    return "\n".join(lines)
