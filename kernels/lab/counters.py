"""Hardware counters of one launch, read with Nsight Compute's `ncu` in another process.

Tensor-pipe activity, bytes through the L2 and from DRAM, achieved occupancy, why warps wait, registers.
Clocks are left alone (`--clock-control none`); ncu empties the caches before each pass, so the bytes are
those of a cold call.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

import pandas as pd

from kernels.lab.evidence import Evidence
from kernels.lab.experiments.point import Point
from kernels.lab.records import place, schema

# name in counters.csv -> ncu's metrics, the first that the device has is read
METRICS = {
    "tensor_pipe_pct": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "fma_pipe_pct": (
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    "l2_bytes": ("lts__t_bytes.sum",),
    "dram_bytes": ("dram__bytes.sum", "dram__bytes_read.sum"),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "sm_busy_pct": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "duration_ns": ("gpu__time_duration.sum",),
    "registers": ("launch__registers_per_thread",),
    "shared_bytes": ("launch__shared_mem_per_block",),
    "blocks": ("launch__grid_size",),
}
STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "wait",
    "math_pipe_throttle",
    "mio_throttle",
    "lg_throttle",
    "not_selected",
    "no_instruction",
    "dispatch_stall",
    "membar",
    "sleeping",
    "selected",
)
METRICS |= {
    f"stall_{name}": (f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio",) for name in STALLS
}
UNITS = {"pct": "%", "bytes": "byte", "ns": "ns", "registers": "per thread", "blocks": "blocks"}
ADDED = ("l2_bytes", "dram_bytes", "duration_ns", "blocks")
MARKER = "spin_kernel"
TIMEOUT_S = 240

SPARSE = "sparse_mla_decode"
EXPERIMENTS = {
    "counters_ladder": {
        "quick": [Point(SPARSE, impl, 16, tile_class="sm120") for impl in ("simt", "mma", "split_k")],
        "full": [
            *(Point(SPARSE, impl, 16, tile_class="sm120") for impl in ("simt", "mma", "split_k", "auto")),
            *(Point(SPARSE, impl, 64) for impl in ("auto", "flash_mla")),
        ],
    },
}


def results(experiment: str, lab) -> tuple[pd.DataFrame, Evidence]:
    """(rows of counters.csv, evidence): read now on a GPU, from the newest record elsewhere."""
    from kernels.lab import experiments, records

    if experiment not in EXPERIMENTS:
        raise KeyError(f"experiment={experiment!r} is unknown; accepted: {', '.join(EXPERIMENTS)}")
    if not lab.on_gpu or experiment in experiments.skipped():
        return experiments.recorded(experiment, "counters")
    run = lab.run = lab.run or records.open_run(lab.profile)
    if not run.has(experiment):
        begun = time.perf_counter()
        rows = read(EXPERIMENTS[experiment][lab.profile])
        run.put(experiment, schema.frame(rows, "counters"), "counters", lab.name, time.perf_counter() - begun)
    df = run.table("counters")
    return df[df["experiment"] == experiment].reset_index(drop=True), experiments.measured_here(run)


def totals(df: pd.DataFrame) -> pd.DataFrame:
    """One row per point, one column per metric: bytes, time and blocks added over the call's kernels, the
    rest weighted by each kernel's time.
    """
    keys = ["op", "impl", "tile_class", "batch", "heads", "topk"]
    good = df[df["status"] == "ok"]
    rows = []
    for key, point in good.groupby(keys, sort=False, dropna=False):
        wide = point.pivot_table(index="kernel", columns="metric", values="value", aggfunc="sum", sort=False)
        weight = wide["duration_ns"] if "duration_ns" in wide else pd.Series(1.0, index=wide.index)
        entry = dict(zip(keys, key, strict=True))
        for metric in wide.columns:
            values = wide[metric]
            known = values.notna()
            added = metric in ADDED
            entry[metric] = values.sum() if added else (values * weight)[known].sum() / weight[known].sum()
        rows.append(entry)
    return pd.DataFrame(rows, columns=None if rows else [*keys, *METRICS])


def _row(point: Point, **columns: Any) -> dict[str, Any]:
    named = point.row()
    return {
        **{name: named[name] for name in ("op", "impl", "tile_class", "batch", "heads", "topk")},
        "status": "ok",
        "reason": "",
        **columns,
    }


def _skipped(points: list[Point], reason: str, status: str = "skipped") -> list[dict[str, Any]]:
    return [_row(point, kernel="", metric="", status=status, reason=reason) for point in points]


def read(points: list[Point]) -> list[dict[str, Any]]:
    """Rows of counters.csv for each point; where ncu is absent or refuses, rows with the reason."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return _skipped(points, "ncu is not installed")
    try:
        chosen = available(ncu)
        output = _profile(ncu, points, sorted(chosen))
    except (OSError, subprocess.SubprocessError) as error:
        return _skipped(points, f"ncu: {type(error).__name__}")
    refused = refusal(output)
    if refused:
        return _skipped(points, refused)
    groups = by_marker(parse(output))
    if len(groups) != len(points):
        return _skipped(points, f"ncu saw {len(groups)} of {len(points)} points", status="failed")
    rows = []
    for point, launches in zip(points, groups, strict=True):
        if not launches:
            rows += _skipped([point], "no kernel of this point ran")
        for number, launch in enumerate(launches):
            name = launch["kernel"] if len(launches) == 1 else f"{number}:{launch['kernel']}"
            for metric, value in launch["metrics"].items():
                if metric in chosen:
                    short = chosen[metric]
                    rows.append(_row(point, kernel=name, metric=short, value=value, unit=unit_of(short)))
    return rows


def unit_of(metric: str) -> str:
    """The unit of a metric of counters.csv."""
    if metric.startswith("stall_"):
        return "warps per issue"
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "")


def available(ncu: str) -> dict[str, str]:
    """ncu's metric -> name in counters.csv, for the metrics that this device has."""
    listing = subprocess.run(
        [ncu, "--query-metrics"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    known = set(re.findall(r"^(\w+__\w+)", listing, re.MULTILINE))
    chosen = {}
    for name, alternatives in METRICS.items():
        for metric in alternatives:
            # launch__ metrics are no counters and are not listed
            if metric.split(".")[0] in known or metric.startswith("launch__") or not known:
                chosen[metric] = name
                break
    return chosen


def _profile(ncu: str, points: list[Point], metrics: list[str]) -> str:
    job = json.dumps([asdict(point) for point in points])
    command = [
        ncu,
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--print-units",
        "base",
        "--csv",
        "--metrics",
        ",".join(metrics),
        sys.executable,
        "-m",
        "kernels.lab.counters",
        job,
    ]
    ahead = [str(place.root()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ahead)), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )
    return done.stdout + "\n" + done.stderr


def refusal(output: str) -> str | None:
    """Why ncu gave no counters, in words of ours, or None."""
    if "ERR_NVGPUCTRPERM" in output:
        return "ncu may not read counters on this machine (ERR_NVGPUCTRPERM)"
    if '"Metric Name"' in output:
        return None
    found = re.search(r"==ERROR==\s*(.+)", output) or re.search(r"^(\w*Error): ", output, re.MULTILINE)
    if not found:
        return "ncu printed no table"
    words = [word for word in found.group(1).split() if "/" not in word]
    return f"ncu: {' '.join(words)[:120]}"


def parse(output: str) -> list[dict[str, Any]]:
    """Launches in ncu's CSV output, in order: kernel, and metrics as numbers. Text around the table is
    ignored.

    A value that is no number ('n/a', an error) is left out.
    """
    lines = output.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    launches: dict[str, dict[str, Any]] = {}
    table = [line for line in lines[first:] if line.startswith('"')]
    for entry in csv.DictReader(table):
        launch = launches.setdefault(
            entry.get("ID") or "", {"kernel": short_name(entry.get("Kernel Name") or ""), "metrics": {}}
        )
        try:
            value = float((entry.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue
        launch["metrics"][entry.get("Metric Name") or ""] = value
    return list(launches.values())


def short_name(kernel: str) -> str:
    """A kernel's name without arguments, templates and namespaces."""
    bare = re.sub(r"<.*>|\(.*\)", "", kernel.replace("(anonymous namespace)::", "")).strip()
    return bare.split("::")[-1].split(" ")[-1] or kernel


def by_marker(launches: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Launches grouped by the marker kernel that precedes each point."""
    groups: list[list[dict[str, Any]]] = []
    for launch in launches:
        if MARKER in launch["kernel"]:
            groups.append([])
        elif groups:
            groups[-1].append(launch)
    return groups


def main(job: str) -> None:
    """What runs under ncu: build each point, warm it up, mark it and launch it once."""
    import torch

    from kernels.lab.experiments import builder

    torch.cuda._sleep(1)
    for fields in json.loads(job):
        fields["timers"], fields["tile"] = tuple(fields["timers"]), fields["tile"] and tuple(fields["tile"])
        point = Point(**fields)
        call = None
        try:
            call = builder(point.op)(point, sets=1).calls[0]
            call()
        except Exception as error:
            print(f"{point.impl}: {type(error).__name__}", file=sys.stderr)
            call = None
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        torch.cuda._sleep(1)
        if call is not None:
            call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1])
