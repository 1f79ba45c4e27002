"""The time of one kernel launch from counts of its machine code: few constants, each of them written down.

A block of W warps runs n passes of its main loop. One pass costs, in clocks,

    pipe(x)  = clocks that the pass keeps pipe x of a multiprocessor busy
    S        = the busiest pipe's clocks                             what blocks on one multiprocessor share
    L        = what the pass waits for without that pipe             what other blocks can hide

Barriers part a pass into fetch, dequantise, multiply and softmax, so one block does not hide its own waiting.
With r blocks on a multiprocessor a pass takes as long as a round of a closed queue with one server (service S)
and a delay L, by exact mean value analysis (Reiser and Lavenberg, 1980):

    queue(0) = 0,   round(r) = L + S * (1 + queue(r - 1)),   queue(r) = r * (round(r) - L) / round(r)

so one block takes L + S, and many take r * S. What lies outside the loop is one more round, `ends`:

    wave(r)  = n * round(r) + ends(r)           n is the mean over blocks, in the last wave the most
    sm       = sum of wave(r) over the waves of the multiprocessor that got most blocks
    time     = floor + max(sm / clock, DRAM bytes / bandwidth, L2 bytes / bandwidth)
                     + bytes written / (write_efficiency * L2 bandwidth) / waves

Where some warps fetch and dequantise while the others multiply, two loops run side by side: group g of W(g) warps
has its own pipe(x, g), S(g) and L(g). A pipe's clocks add up, and a pass of one block, L + S, takes as long as its
slower group or its busiest pipe:

    pipe(x)  = sum of pipe(x, g),   L = max(0, max of (L(g) + S(g)) - S)

Outside the loops the two follow one another: their clocks and their waiting add up.

Blocks of one wave end together, so their writes hide behind nothing; with more waves the others' work hides them.

With warps W of a group (all warps of a block where there is one group):

    issue        = instructions * W / schedulers
    fma, integer, special, conversion = instructions * 32 W / lanes
    tensor       = operations * W / (operations a clock): mma.sync reaches `warp_mma_fraction` of the rate, a
                   warp group's product `warpgroup_fraction`
    memory pipe  = wavefronts of 128 bytes: shared + scalar shared * scalar_conflicts + global + shuffles. Scalar
                   are accesses of up to 4 bytes a thread: exchanges between layouts, whose bank conflicts no
                   count shows. Wider ones go to swizzled tiles
    L            = instructions a warp * instruction_latency + barriers * barrier_latency
                   + shuffles * shuffle_latency + dependent tensor instructions * their latency
                   + reloads of spilled registers * spill_latency + loads that nothing hides

Barriers are those of a block or a group, named ones among them, and mbarriers.

Parameters are in `data/model_parameters.csv`, rates in `data/devices.csv`.
"""

import csv
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from kernels.lab.compile.result import Compiled
from kernels.lab.compile.sass import Counts
from kernels.lab.devices import Device, device_of
from kernels.lab.occupancy import Occupancy, occupancy

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


@lru_cache
def _parameters_of(target: str) -> tuple[tuple[str, float], ...]:
    rows = parameter_table()
    return tuple(
        (row["parameter"], row["value"]) for s in ("*", target) for row in rows if row["subject"] == s
    )


def parameters_of(target: str) -> dict[str, float]:
    """Parameter values for a compiler target: its own where the table has them, else the common ones."""
    return dict(_parameters_of(target))


def wavefronts(counts: Counts, *names: str) -> float:
    """Clocks that loads and stores of these classes occupy the memory pipe, without conflicts.

    A warp moves 128 bytes a clock; an instruction that moves fewer still takes one.
    """
    return sum(
        number * max(1.0, 32 * width / MEMORY_BYTES_PER_CLOCK)
        for name in names
        for width, number in counts.widths.get(name, {}).items()
    )


@dataclass(frozen=True)
class Demand:
    """What one warp issues in a piece of code: instructions by pipe, wavefronts, tensor operations."""

    instructions: float = 0
    fma: float = 0
    integer: float = 0
    conversion: float = 0
    special: float = 0
    shared: float = 0
    scalar_shared: float = 0
    global_memory: float = 0
    reloads: float = 0
    shuffles: float = 0
    barriers: float = 0
    tensor_flops: float = 0

    def minus(self, other: "Demand") -> "Demand":
        """What is left without another piece; never below 0."""
        return Demand(
            *(max(a - b, 0) for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def demand(counts: Counts) -> Demand:
    """The demand of counted code."""
    shared = [counts.widths.get(name, {}) for name in ("shared_load", "shared_store")]
    scalar = sum(number for widths in shared for width, number in widths.items() if width <= 4)
    return Demand(
        instructions=counts.total,
        fma=counts["fma"],
        integer=counts["integer"] + counts["compare"] + counts["move"],
        conversion=counts["conversion"],
        special=counts["special"],
        shared=wavefronts(counts, "shared_load", "shared_store") - scalar,
        scalar_shared=scalar,
        global_memory=wavefronts(
            counts, "global_load", "global_store", "async_copy", "local_load", "local_store"
        ),
        reloads=counts["local_load"],
        shuffles=counts["shuffle"],
        barriers=counts.opcodes.get("BAR", 0) + counts.opcodes.get("SYNCS", 0),
        tensor_flops=counts.tensor_flops,
    )


@dataclass(frozen=True)
class Group:
    """Warps of a block that run the same code: its demand, how many they are, what their loads wait for.

    tensor_chain: dependent tensor instructions. loads: (L2, DRAM) latencies that nothing hides.
    """

    demand: Demand
    warps: int
    tensor_chain: float = 0
    loads: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        compiled: its machine code, for the device's target.
        blocks: programs in the grid.
        passes: passes through the main loop of the block that has most. mean_passes: over all blocks, where
            they differ.
        dram_bytes: bytes that must come from or go to DRAM, each once.
        l2_bytes: bytes that the blocks read from L2. written_bytes: bytes that they write.
        tensor_chain: dependent tensor instructions of a pass, 0 for a kernel without.
        pass_loads: (L2, DRAM) latencies that follow one another in each pass and that nothing hides; in a block
            with producers, for them alone.
        end_loads: the same outside the loop.
        overlapped: whether it may start while its predecessor ends (programmatic dependent launch).
    """

    compiled: Compiled
    blocks: int
    passes: float
    dram_bytes: float
    l2_bytes: float
    written_bytes: float = 0.0
    tensor_chain: float = 0
    pass_loads: tuple[int, int] = (0, 0)
    end_loads: tuple[int, int] = (0, 0)
    overlapped: bool = False
    mean_passes: float | None = None

    @cached_property
    def loop(self) -> Demand:
        """One pass of the main loop; nothing for a kernel without a loop."""
        return demand(self.compiled.main_loop.counts) if self.compiled.main_loop else Demand()

    @cached_property
    def passing(self) -> tuple[Group, ...]:
        """One pass: the warps of the main loop, and the producers where there are any, which have the loads."""
        one = self.compiled
        if one.producer_loop is None:
            return (Group(self.loop, one.main_warps, self.tensor_chain, self.pass_loads),)
        fetching = Group(demand(one.producer_loop.counts), one.producer_warps, 0, self.pass_loads)
        return Group(self.loop, one.main_warps, self.tensor_chain), fetching

    @cached_property
    def ends(self) -> tuple[Group, ...]:
        """What a block issues outside its loops.

        The warps of the main loop get their code from a loop around it, in which they wait for work.
        """
        one, left = self.compiled, demand(self.compiled.counts)
        if one.producer_loop is None:
            for loop in one.loops:
                left = left.minus(demand(loop.counts)) if loop.depth == 1 else left
            return (Group(left, one.main_warps, 0, self.end_loads),)
        inner = one.main_loop
        around = [loop for loop in one.loops if loop.first <= inner.first and inner.last <= loop.last]
        dispatch = demand(min(around, key=lambda loop: loop.depth).counts)
        left = left.minus(dispatch).minus(demand(one.producer_loop.counts))
        return Group(dispatch.minus(self.loop), one.main_warps), Group(
            left, one.producer_warps, 0, self.end_loads
        )

    @cached_property
    def warpgroup(self) -> bool:
        return any(opcode in self.compiled.counts.opcodes for opcode in ("HGMMA", "QGMMA"))

    @cached_property
    def eight_bit(self) -> bool:
        return any(opcode in self.compiled.counts.opcodes for opcode in ("QMMA", "QGMMA"))

    @cached_property
    def fit(self) -> Occupancy:
        one = self.compiled
        return occupancy(one.shared_bytes, one.registers, one.max_threads, one.target)


@dataclass(frozen=True)
class Prediction:
    """A predicted time, in microseconds, and what it is made of.

    Attributes:
        us: the whole. terms: name to microseconds: floor, multiprocessor, dram, l2, write; `us` is floor and
            write plus the largest of the others (summed over launches).
        pipes: pipe to busy clocks of one pass of one block; latency: L of a pass, in clocks.
        bound: what sets the time: the largest term, or within a multiprocessor the busiest pipe, "latency"
            where a pass waits longer than it works, "ends" where what lies outside the loop takes longer.
        band: (low, high) in microseconds from the validation record, or None.
        evidence: "judged on ...", or "not validated".
    """

    us: float
    terms: dict[str, float]
    pipes: dict[str, float]
    latency: float
    resident: int
    waves: int
    bound: str
    band: tuple[float, float] | None = None
    evidence: str = "not validated"
    launches: tuple["Prediction", ...] = field(default=(), repr=False)


def pipe_clocks(
    group: Group, launch: Launch, device: Device, parameters: dict[str, float]
) -> dict[str, float]:
    """Clocks that a piece of code, issued by each warp of a group, keeps each pipe of a multiprocessor busy."""
    one, warps = group.demand, group.warps
    lanes = 32 * warps
    rate = device["fp8_tensor_flops_per_clock" if launch.eight_bit else "bf16_tensor_flops_per_clock"]
    rate *= parameters["warpgroup_fraction"] if launch.warpgroup else device.get("warp_mma_fraction", 1.0)
    shuffles = one.shuffles * 32 / device["shuffle_lanes"]
    shared = one.shared + one.scalar_shared * parameters["scalar_conflicts"]
    pipes = {
        "issue": one.instructions * warps / device["issue_slots"],
        "fma": one.fma * lanes / device["fma_lanes"],
        "integer": one.integer * lanes / device["integer_lanes"],
        "conversion": one.conversion * lanes / device["conversion_lanes"],
        "special": one.special * lanes / device["special_lanes"],
        "tensor": one.tensor_flops * warps / rate,
        "memory pipe": warps * (shared + one.global_memory + shuffles),
    }
    if parameters.get("unified_lanes"):
        pipes["fma and integer"] = pipes.pop("fma") + pipes.pop("integer")
    return pipes


def waiting(group: Group, launch: Launch, device: Device, parameters: dict[str, float]) -> float:
    """Clocks that a group waits in a piece of code, using no pipe."""
    one, loads = group.demand, group.loads
    step = parameters["warpgroup_latency" if launch.warpgroup else "tensor_latency"]
    clock = device["boost_clock"] / 1e3
    l2 = parameters["l2_exposure"] * device["l2_latency"] * clock
    return (
        one.instructions * parameters["instruction_latency"]
        + one.barriers * parameters["barrier_latency"]
        + one.shuffles * parameters["shuffle_latency"]
        + one.reloads * parameters["spill_latency"]
        + group.tensor_chain * step
        + loads[0] * l2
        + loads[1] * parameters["entry_latency"] * clock
    )


def side_by_side(
    groups: tuple[Group, ...], launch: Launch, device: Device, parameters: dict[str, float]
) -> tuple[dict[str, float], float]:
    """(busy clocks of each pipe, L) of a pass in which every group runs its own loop."""
    each = [pipe_clocks(group, launch, device, parameters) for group in groups]
    pipes = {name: sum(clocks[name] for clocks in each) for name in each[0]}
    chains = [
        waiting(group, launch, device, parameters) + max(clocks.values())
        for group, clocks in zip(groups, each, strict=True)
    ]
    return pipes, max(0.0, max(chains) - max(pipes.values()))


def round_clocks(latency: float, busy: float, resident: int) -> float:
    """A round of `resident` blocks that share a server (service `busy`) and wait `latency` on their own."""
    queue = length = 0.0
    for customers in range(1, resident + 1):
        length = latency + busy * (1 + queue)
        queue = customers * (length - latency) / length if length else 0.0
    return length


def _checked(launch: Launch, device: Device) -> None:
    compiled = launch.compiled
    if compiled.error:
        raise ValueError(f"launch: the kernel has no machine code ({compiled.error})")
    if compiled.target != device.target.name:
        raise ValueError(f"launch: compiled for {compiled.target}, but {device.key} is {device.target.name}")
    if launch.fit.blocks == 0:
        raise ValueError(
            f"launch: no block fits a multiprocessor of {device.key}; {launch.fit.limiter} is the limit"
        )


def predict_launch(launch: Launch, device, parameters: dict[str, float] | None = None) -> Prediction:
    """The time of one launch on a device, by the equations in this module's docstring.

    Raises:
        ValueError: the kernel did not compile, was compiled for another target, or does not fit a
            multiprocessor.
    """
    device = device_of(device)
    _checked(launch, device)
    parameters = parameters_of(device.target.name) | (parameters or {})
    clock = device["boost_clock"]
    pipes, latency = side_by_side(launch.passing, launch, device, parameters)
    busy = max(pipes.values())
    ends_busy = sum(max(pipe_clocks(group, launch, device, parameters).values()) for group in launch.ends)
    ends_latency = sum(waiting(group, launch, device, parameters) for group in launch.ends)
    most_passes = launch.passes if launch.compiled.main_loop else 0
    mean_passes = most_passes if launch.mean_passes is None else min(launch.mean_passes, most_passes)

    remaining = -(-launch.blocks // device["sm_count"])
    full, rest = divmod(remaining, launch.fit.blocks)
    waves = full + (rest > 0)
    looping = outside = 0.0
    for resident, count, last in ((launch.fit.blocks, full, rest == 0), (rest, 1, True)):
        if resident and count:
            passes = count * mean_passes + (most_passes - mean_passes) * last
            looping += passes * round_clocks(latency, busy, resident)
            outside += count * round_clocks(ends_latency, ends_busy, resident)
    most = min(remaining, launch.fit.blocks)

    active = min(launch.blocks, device["sm_count"])
    l2_speed = min(
        device["l2_bandwidth"] * parameters["l2_efficiency"],
        active * parameters["l2_bytes_per_clock_per_sm"] * clock / 1e3,
    )
    write_speed = device["l2_bandwidth"] * parameters["write_efficiency"]
    terms = {
        "floor": parameters["overlapped_floor" if launch.overlapped else "launch_floor"],
        "multiprocessor": (looping + outside) / clock,
        "dram": launch.dram_bytes / (device["dram_bandwidth"] * parameters["dram_efficiency"]) / 1e3,
        "l2": launch.l2_bytes / l2_speed / 1e3,
        "write": launch.written_bytes / write_speed / 1e3 / waves,
    }
    largest = max(("multiprocessor", "dram", "l2"), key=terms.get)
    us = terms["floor"] + terms["write"] + terms[largest]
    bound = max((largest, "floor", "write"), key=terms.get)
    if bound == "multiprocessor":
        bound = max(pipes, key=pipes.get) if most * busy > latency else "latency"
        bound = "ends" if outside > looping else bound
    return Prediction(us, terms, pipes, latency, launch.fit.blocks, waves, bound)


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
