"""How many blocks fit a multiprocessor, and how a grid falls into waves."""

from dataclasses import dataclass

from kernels.lab.devices import Target, target_of

REGISTER_UNIT = 256  # registers are given to a warp in multiples of this
SHARED_UNIT = 128  # and shared memory to a block in multiples of this


def registers_per_block(registers: int, threads: int) -> int:
    """Registers a block occupies: a warp's share is rounded up to a multiple of 256."""
    warps = -(-threads // 32)
    return warps * (-(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT)


@dataclass(frozen=True)
class Occupancy:
    """Blocks that fit a multiprocessor at once, by each limit and by all of them.

    Attributes:
        by_shared, by_registers, by_warps, by_slots: blocks if this were the only limit.
        threads: threads a block.
    """

    by_shared: int
    by_registers: int
    by_warps: int
    by_slots: int
    threads: int

    @property
    def blocks(self) -> int:
        return min(self.by_shared, self.by_registers, self.by_warps, self.by_slots)

    @property
    def warps(self) -> int:
        """Warps that are resident on a full multiprocessor."""
        return self.blocks * -(-self.threads // 32)

    @property
    def limiter(self) -> str:
        """The limit that binds: "shared memory", "registers", "warps" or "block slots"."""
        limits = {
            "shared memory": self.by_shared,
            "registers": self.by_registers,
            "warps": self.by_warps,
            "block slots": self.by_slots,
        }
        return min(limits, key=limits.get)


def occupancy(shared_bytes: int, registers: int, threads: int, target: str | Target = "sm_120") -> Occupancy:
    """Blocks a multiprocessor holds.

    Args:
        shared_bytes: dynamic shared memory a block asks for; the system's 1,024 bytes are added here.
        registers: 32-bit registers a thread.
        threads: threads a block.
        target: a compiler target.

    Raises:
        ValueError: a negative size, or no threads.
    """
    if shared_bytes < 0 or registers < 1 or threads < 1:
        raise ValueError(
            f"occupancy: got shared_bytes={shared_bytes}, registers={registers}, threads={threads}; "
            "accepted are 0, 1 and 1 or more"
        )
    limits = target_of(target)
    warps = -(-threads // 32)
    granted = -(-shared_bytes // SHARED_UNIT) * SHARED_UNIT + limits.shared_reserved
    fits = shared_bytes <= limits.shared_optin
    return Occupancy(
        by_shared=limits.shared_per_sm // granted if fits else 0,
        by_registers=limits.registers_per_sm // registers_per_block(registers, threads),
        by_warps=limits.warps_per_sm // warps,
        by_slots=limits.blocks_per_sm,
        threads=threads,
    )


@dataclass(frozen=True)
class Waves:
    """A grid on a device: `blocks` over `sm_count` multiprocessors that hold `resident` blocks each.

    `full` waves are complete, `tail` blocks are left for a last one. `busy_sms` is how many multiprocessors
    ever get a block; `efficiency` is the grid's work over what the same time could do with every place taken.
    """

    blocks: int
    sm_count: int
    resident: int

    @property
    def places(self) -> int:
        return self.sm_count * self.resident

    @property
    def full(self) -> int:
        return self.blocks // self.places

    @property
    def tail(self) -> int:
        return self.blocks % self.places

    @property
    def waves(self) -> int:
        return -(-self.blocks // self.places)

    @property
    def busy_sms(self) -> int:
        return min(self.blocks, self.sm_count)

    @property
    def efficiency(self) -> float:
        return self.blocks / (self.waves * self.places)


def waves(batch: int, head_groups: int, splits: int, sm_count: int, resident: int = 1) -> Waves:
    """The waves of a grid (batch, head groups, splits).

    Raises:
        ValueError: an argument below 1.
    """
    given = {"batch": batch, "head_groups": head_groups, "splits": splits, "sm_count": sm_count}
    for name, value in (given | {"resident": resident}).items():
        if value < 1:
            raise ValueError(f"{name}: got {value}, accepted is 1 or more")
    return Waves(batch * head_groups * splits, sm_count, resident)
