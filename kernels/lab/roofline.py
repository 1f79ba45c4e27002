"""Exact counts of work and bytes, and the time that a device could not beat.

A roof is max(bytes / bandwidth, operations / rate): what remains when every pipe is perfectly busy. Counts
are of what a launch must do (compulsory) or of what a given grid asks for (requested); neither is measured.
Sizes come from the cache layouts: a KV entry is 584 bytes (448 e4m3, 64 bfloat16, 8 scale bytes), an index
entry 132 (128 e4m3, one float32 scale), an index 4.
"""

from dataclasses import dataclass

from kernels.lab.devices import device_of

HEAD_DIM = 512
KV_BYTES = 584
INDEX_BYTES = 4
HEAD_BYTES = 2 * HEAD_DIM + 2 * HEAD_DIM + 4  # query in, output out, one LSE: 2,052
INDEX_HEADS, INDEX_DIM, INDEX_ENTRY_BYTES = 64, 128, 132
LAYERS = 43


@dataclass(frozen=True)
class Work:
    """Operations and bytes of a launch, by component.

    Attributes:
        flops: floating-point operations, a multiply-add counted as two.
        parts: component to bytes; their sum is `bytes`.
    """

    flops: int
    parts: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Roof:
    """The time a device cannot beat, in microseconds, and what sets it: "memory" or "arithmetic"."""

    memory_us: float
    arithmetic_us: float

    @property
    def us(self) -> float:
        return max(self.memory_us, self.arithmetic_us)

    @property
    def bound(self) -> str:
        return "memory" if self.memory_us >= self.arithmetic_us else "arithmetic"


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}: got {value}, accepted is 1 or more")


def attention(batch: int, heads: int, candidates: int) -> Work:
    """What sparse MLA decode must do and move for `candidates` live entries a row.

    Each head multiplies 512 numbers by a candidate twice, once for its score and once for the output:
    2 * 2 * 512 = 2,048 operations. Each row reads its entries and their indices once, whatever the heads.

    Raises:
        ValueError: an argument below 1.
    """
    _positive(batch=batch, heads=heads, candidates=candidates)
    return Work(
        flops=4 * HEAD_DIM * batch * heads * candidates,
        parts={
            "kv": KV_BYTES * batch * candidates,
            "indices": INDEX_BYTES * batch * candidates,
            "query": 2 * HEAD_DIM * batch * heads,
            "output": 2 * HEAD_DIM * batch * heads,
            "lse": 4 * batch * heads,
        },
    )


def requested_kv_bytes(batch: int, heads: int, candidates: int, block_h: int = 1) -> int:
    """KV bytes that a grid of (batch, ceil(heads / block_h)) asks for: every head group reads all entries."""
    _positive(batch=batch, heads=heads, candidates=candidates, block_h=block_h)
    return -(-heads // block_h) * KV_BYTES * batch * candidates


def redundancy(heads: int, block_h: int = 1) -> int:
    """How many times each entry is asked for: 64 with one head a block."""
    _positive(heads=heads, block_h=block_h)
    return -(-heads // block_h)


def scratch(batch: int, heads: int, num_splits: int, scratch_bytes: int = 2) -> dict[str, int]:
    """Bytes of split-K's partial results for one layer, one way; the combine kernel reads the same again.

    Args:
        scratch_bytes: 2 for bfloat16 partial outputs, 4 for float32. Partial LSEs are float32.
    """
    _positive(batch=batch, heads=heads, num_splits=num_splits, scratch_bytes=scratch_bytes)
    rows = batch * heads * num_splits
    return {"partial_output": rows * HEAD_DIM * scratch_bytes, "partial_lse": 4 * rows}


def combine(batch: int, heads: int, num_splits: int, scratch_bytes: int = 2) -> Work:
    """What the combine kernel must do and move: read the partials, write the result."""
    parts = scratch(batch, heads, num_splits, scratch_bytes)
    result = {"output": 2 * HEAD_DIM * batch * heads, "lse": 4 * batch * heads}
    return Work(2 * HEAD_DIM * batch * heads * num_splits, parts | result)


@dataclass(frozen=True)
class ScratchClaim:
    """The campaign's two figures for split-K's scratch beside the arithmetic, in megabytes (10**6 bytes).

    The articles say 6.2 MB a layer at batch 16 and 530 MB a step over 43 layers. The second is twice 43 times
    the first, so "a layer" is one way and "a step" is written and read.
    """

    layer_mb: float
    layer_both_ways_mb: float
    step_one_way_mb: float
    step_mb: float
    stated_layer_mb: float = 6.2
    stated_step_mb: float = 530.0

    @property
    def layer_difference(self) -> float:
        """Stated over computed, minus one."""
        return self.stated_layer_mb / self.layer_mb - 1

    @property
    def step_difference(self) -> float:
        return self.stated_step_mb / self.step_mb - 1


def scratch_claim(
    batch: int = 16, heads: int = 64, num_splits: int = 6, scratch_bytes: int = 2, layers: int = LAYERS
) -> ScratchClaim:
    """The campaign's scratch arithmetic: its batch, its number of splits, bfloat16 partial outputs."""
    one_way = scratch(batch, heads, num_splits, scratch_bytes)["partial_output"] / 1e6
    return ScratchClaim(one_way, 2 * one_way, layers * one_way, 2 * layers * one_way)


def indexer(batch: int, entries: int) -> Work:
    """What the indexer's logits must do and move for `entries` live entries a row (float32 logits out).

    A score is 64 heads times 128 dimensions; the ReLU, the weight and the head sum add two operations a head.
    """
    _positive(batch=batch, entries=entries)
    per_entry = 2 * INDEX_HEADS * INDEX_DIM + 2 * INDEX_HEADS
    return Work(
        flops=per_entry * batch * entries,
        parts={
            "keys": INDEX_ENTRY_BYTES * batch * entries,
            "block_table": 4 * batch * -(-entries // 64),
            "query": INDEX_HEADS * INDEX_DIM * batch,
            "weights": 4 * INDEX_HEADS * batch,
            "logits": 4 * batch * entries,
        },
    )


def uncapped_indexer(batch: int, capacity: int, score_passes: int = 4) -> Work:
    """What the gather-and-multiply indexer moves for a block table that is `capacity` entries wide.

    Every pass is a kernel of its own, so what it leaves is written and read again: the gathered bytes, their
    bfloat16 copy (256 bytes an entry) and the bfloat16 scores (128 bytes an entry), which ReLU, weights and
    head sum pass over.

    Args:
        score_passes: how often the score tensor is written or read after the product wrote it.
    """
    _positive(batch=batch, capacity=capacity, score_passes=score_passes)
    entries = batch * capacity
    live = indexer(batch, capacity)
    return Work(
        live.flops,
        live.parts
        | {
            "gathered_copy": 2 * INDEX_ENTRY_BYTES * entries,
            "bfloat16_keys": 2 * 2 * INDEX_DIM * entries,
            "scores": (1 + score_passes) * 2 * INDEX_HEADS * entries,
        },
    )


def roof(
    work: Work,
    device,
    *,
    arithmetic: str = "bf16_tensor",
    bandwidth: str = "dram_bandwidth",
    measured: bool = False,
) -> Roof:
    """The roof of `work` on a device.

    Args:
        device: key in `data/devices.csv`, or a `Device`.
        arithmetic: the fact with the rate in TFLOP/s: "bf16_tensor", "fp8_tensor" or "fp32".
        bandwidth: the fact with the bandwidth in GB/s: "dram_bandwidth" or "l2_bandwidth".
        measured: use rates that were measured on such a device, where the table has them.

    Raises:
        KeyError: the device lacks the fact.
    """
    device = device_of(device)
    rate = device[arithmetic]
    speed = device[bandwidth]
    if measured:
        rate = device.get("bf16_measured", rate) if arithmetic == "bf16_tensor" else rate
        speed = device.get("dram_measured", speed) if bandwidth == "dram_bandwidth" else speed
    return Roof(memory_us=work.bytes / speed / 1e3, arithmetic_us=work.flops / rate / 1e6)


def ridge(device, *, arithmetic: str = "bf16_tensor", bandwidth: str = "dram_bandwidth") -> float:
    """Operations a byte at which a device turns from memory-bound to arithmetic-bound."""
    device = device_of(device)
    return device[arithmetic] * 1e3 / device[bandwidth]
