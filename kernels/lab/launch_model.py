"""The time of one kernel launch from counts: a model with few constants, each of them written down.

For a block of W warps whose loop runs n times, with instruction counts c of one pass:

    pipe(x)  = clocks that one pass keeps pipe x of a multiprocessor busy           [clock]
    P        = max over pipes of pipe(x)                                             [clock]
    L        = latency that one pass cannot hide inside its block                    [clock]
    pass(r)  = max(r * P, P + L)          r blocks share the multiprocessor: they hide each other's latency
    wave(r)  = n * pass(r) + once         once: the instructions and loads outside the loop
    sm       = sum of wave(r) over the waves of the multiprocessor that got most blocks
    time     = floor + max(sm / clock, DRAM bytes / bandwidth, L2 bytes / bandwidth)

with
    issue        = instructions * W / 4 schedulers * issue_inefficiency
    fma, integer = instructions * W * 32 / lanes (one sum where the lanes are unified)
    conversion, special = the same with their lanes
    tensor       = operations * W / (operations a clock); mma.sync reaches `warp_mma_fraction` of the rate
    memory pipe  = wavefronts of 128 bytes: shared * shared_conflicts + global + local + shuffles
    L            = exposure * (index_latency + entry_latency) + barriers * barrier_latency
                 + tensor chain * tensor_latency + shuffle chain * shuffle_latency

The chain of tensor instructions is 512/16 steps of the scores and BLOCK_T/16 of the output, one after the
other. `exposure` is 1, or `pipelined_exposure` when the loop's loads are asynchronous copies. Parameters are
in `data/model_parameters.csv`, rates in `data/devices.csv`.
"""

import csv
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kernels.lab.compile.result import Compiled
from kernels.lab.compile.sass import Counts
from kernels.lab.devices import Device, device_of
from kernels.lab.occupancy import occupancy

PARAMETERS = Path(__file__).resolve().parents[2] / "data" / "model_parameters.csv"
MEMORY_BYTES_PER_CLOCK = 128  # shared memory and L1: 32 banks of 4 bytes


@lru_cache
def parameter_table() -> tuple[dict, ...]:
    """Rows of `data/model_parameters.csv`, numbers as floats, `fitted` as a bool."""
    with PARAMETERS.open(newline="") as file:
        rows = []
        for row in csv.DictReader(file):
            numbers = {name: float(row[name]) for name in ("value", "low", "high")}
            rows.append(row | numbers | {"fitted": row["fitted"] == "1"})
        return tuple(rows)


def parameters_of(target: str) -> dict[str, float]:
    """Parameter values for a compiler target: its own where the table has them, else the common ones."""
    subjects = ("*", target)
    return {
        row["parameter"]: row["value"] for s in subjects for row in parameter_table() if row["subject"] == s
    }


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        compiled: its machine code, for the device's target.
        blocks: programs in the grid.
        passes: passes through the main loop of the block that has most.
        dram_bytes: bytes that must come from or go to DRAM, each once.
        l2_bytes: bytes that the blocks ask of L2.
        tensor_chain: dependent tensor instructions of a pass, 0 for a kernel without.
        first: whether nothing precedes it in the chain that it could overlap with.
    """

    compiled: Compiled
    blocks: int
    passes: float
    dram_bytes: float
    l2_bytes: float
    tensor_chain: int = 0
    first: bool = True


@dataclass(frozen=True)
class Prediction:
    """A predicted time, in microseconds, and what it is made of.

    Attributes:
        us: the whole. terms: name to microseconds: floor, multiprocessor, dram, l2; `us` is floor plus the
            largest of the others (summed over launches).
        pipes: pipe to busy clocks of one pass of one block; latency: L of a pass, in clocks.
        bound: the term or pipe that sets the time.
        band: (low, high) in microseconds from the validation record, or None.
        evidence: "predicted, +-x %", or "predicted, not validated".
    """

    us: float
    terms: dict[str, float]
    pipes: dict[str, float]
    latency: float
    resident: int
    waves: int
    bound: str
    band: tuple[float, float] | None = None
    evidence: str = "predicted, not validated"
    launches: tuple["Prediction", ...] = field(default=(), repr=False)


def wavefronts(counts: Counts, *names: str) -> float:
    """Clocks that loads and stores of these classes occupy the memory pipe, without conflicts.

    A warp moves 128 bytes a clock; an instruction that moves fewer still takes one.
    """
    return sum(
        number * max(1.0, 32 * width / MEMORY_BYTES_PER_CLOCK)
        for name in names
        for width, number in counts.widths.get(name, {}).items()
    )


def pipe_clocks(counts: Counts, warps: int, device: Device, parameters: dict[str, float]) -> dict[str, float]:
    """Clocks that instructions, issued by each of `warps` warps, keep each pipe of a multiprocessor busy."""
    lanes = 32 * warps
    integer = counts["integer"] + counts["compare"] + counts["move"]
    warpgroup = any(opcode in counts.opcodes for opcode in ("HGMMA", "QGMMA"))
    eight_bit = any(opcode in counts.opcodes for opcode in ("QMMA", "QGMMA"))
    rate = device["fp8_tensor_flops_per_clock" if eight_bit else "bf16_tensor_flops_per_clock"]
    rate *= 1.0 if warpgroup else device.get("warp_mma_fraction", 1.0)
    shared = wavefronts(counts, "shared_load", "shared_store") * parameters["shared_conflicts"]
    others = wavefronts(counts, "global_load", "global_store", "async_copy", "local_load", "local_store")
    pipes = {
        "issue": counts.total * warps / device["issue_slots"] * parameters["issue_inefficiency"],
        "fma": counts["fma"] * lanes / device["fma_lanes"],
        "integer": integer * lanes / device["integer_lanes"],
        "conversion": counts["conversion"] * lanes / device["conversion_lanes"],
        "special": counts["special"] * lanes / device["special_lanes"],
        "tensor": counts.tensor_flops * warps / rate,
        "memory pipe": warps * (shared + others + counts["shuffle"] * 32 / device["shuffle_lanes"]),
    }
    if parameters.get("unified_lanes"):
        pipes["fma and integer"] = pipes.pop("fma") + pipes.pop("integer")
    return pipes


def pass_latency(counts: Counts, launch: Launch, parameters: dict[str, float]) -> float:
    """Clocks of one pass that its own block cannot hide: loads, barriers, dependent tensor instructions."""
    asynchronous = counts["async_copy"] + counts["bulk_copy"] > 0
    exposure = parameters["pipelined_exposure"] if asynchronous else 1.0
    loads = counts["global_load"] + counts["async_copy"] + counts["bulk_copy"]
    memory = (parameters["index_latency"] + parameters["entry_latency"]) if loads else 0.0
    # A warp reduces with at most five shuffles in a row; more of them are independent of each other.
    chain = min(counts["shuffle"], 10)
    return (
        exposure * memory
        + counts["barrier"] * parameters["barrier_latency"]
        + launch.tensor_chain * parameters["tensor_latency"]
        + chain * parameters["shuffle_latency"]
    )


def _outside(compiled: Compiled) -> int:
    return max(
        compiled.counts.total - sum(loop.counts.total for loop in compiled.loops if loop.depth == 1), 0
    )


def predict_launch(launch: Launch, device, parameters: dict[str, float] | None = None) -> Prediction:
    """The time of one launch on a device, by the equations in this module's docstring.

    Raises:
        ValueError: the kernel did not compile, was compiled for another target, or does not fit a
            multiprocessor.
    """
    device, compiled = device_of(device), launch.compiled
    if compiled.error:
        raise ValueError(f"launch: the kernel has no machine code ({compiled.error})")
    if compiled.target != device.target.name:
        raise ValueError(f"launch: compiled for {compiled.target}, but {device.key} is {device.target.name}")
    fit = occupancy(compiled.shared_bytes, compiled.registers, compiled.max_threads, device.target)
    if fit.blocks == 0:
        raise ValueError(
            f"launch: no block fits a multiprocessor of {device.key}; {fit.limiter} is the limit"
        )
    parameters = parameters_of(device.target.name) | (parameters or {})
    warps, clock = compiled.max_threads // 32, device["boost_clock"]
    counts = compiled.main_loop.counts if compiled.main_loop else compiled.counts
    pipes = pipe_clocks(counts, warps, device, parameters)
    busiest = max(pipes, key=pipes.get)
    latency = pass_latency(counts, launch, parameters)
    once = _outside(compiled) * warps / device["issue_slots"] * parameters["issue_inefficiency"]
    once += parameters["entry_latency"]

    remaining = -(-launch.blocks // device["sm_count"])
    waves, clocks, hidden = 0, 0.0, True
    while remaining > 0:
        resident = min(remaining, fit.blocks)
        work, alone = resident * pipes[busiest], pipes[busiest] + latency
        hidden = hidden and work >= alone
        clocks += launch.passes * max(work, alone) + once
        remaining -= resident
        waves += 1
    active = min(launch.blocks, device["sm_count"])
    l2_speed = min(
        device["l2_bandwidth"] * parameters["l2_efficiency"],
        active * parameters["l2_bytes_per_clock_per_sm"] * clock / 1e3,
    )
    terms = {
        "floor": parameters["launch_floor" if launch.first else "next_launch_floor"],
        "multiprocessor": clocks / clock,
        "dram": launch.dram_bytes / (device["dram_bandwidth"] * parameters["dram_efficiency"]) / 1e3,
        "l2": launch.l2_bytes / l2_speed / 1e3,
    }
    largest = max(("multiprocessor", "dram", "l2"), key=terms.get)
    bound = largest if largest != "multiprocessor" else (busiest if hidden else "latency")
    us = terms["floor"] + terms[largest]
    return Prediction(us, terms, pipes, latency, fit.blocks, waves, bound)


def chain(predictions: list[Prediction]) -> Prediction:
    """Launches one after the other: times and terms add up; pipes and bound are those of the longest."""
    longest = max(predictions, key=lambda p: p.us)
    terms: dict[str, float] = {}
    for prediction in predictions:
        for name, value in prediction.terms.items():
            terms[name] = terms.get(name, 0.0) + value
    return Prediction(
        sum(p.us for p in predictions),
        terms,
        longest.pipes,
        longest.latency,
        longest.resident,
        longest.waves,
        longest.bound,
        launches=tuple(predictions),
    )
