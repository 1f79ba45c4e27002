"""Launch choices of the indexer: tiles for each device class, grid sizes, the cap's ladder of buckets.

Tiles and grids depend on shapes and the device, never on the lengths, so that a captured graph holds for
every length; the cap alone is the host's reading of a length. Nothing tunes at run time.
"""

from dataclasses import dataclass

GROUP_ROWS = 32
PROGRAMS_PER_GROUP = 8
MIN_CAP = 2048
MAX_TOPK = 2048


@dataclass(frozen=True)
class LogitsTile:
    """How `paged` works: tokens a step (64 or 128), warps, stages, programs an SM, rows a group.

    `programs_per_sm` is what registers and shared memory let stay resident: with fewer, launches that overlap
    would crowd on some SMs; with more, a long row's work would end in a second, short wave.
    """

    block_t: int = 64
    num_warps: int = 4
    num_stages: int = 4
    programs_per_sm: int = 4
    group_rows: int = GROUP_ROWS

    def __post_init__(self):
        if self.block_t not in (64, 128):
            raise ValueError(f"block_t: got {self.block_t}, accepted are 64 and 128")


@dataclass(frozen=True)
class TopkTile:
    """How `radix` works: entries of a chunk, entries whose keys one program holds in registers, and warps, for
    rows or slices and for the merge of slices; slices a row.
    """

    chunk: int = 2048
    held: int = 8192
    num_warps: int = 8
    merge_chunk: int = 4096
    merge_held: int = 16384
    merge_warps: int = 16
    max_slices: int = 32
    programs_per_sm: int = 8

    def __post_init__(self):
        for name in ("chunk", "merge_chunk"):
            value = getattr(self, name)
            # Two counts of a chunk share a word
            if not 1 <= value < 32_768 or value & (value - 1):
                raise ValueError(f"{name}: got {value}, accepted are powers of two below 32,768")


LOGITS_TILES = {
    "sm90": LogitsTile(num_stages=3),
    "sm120": LogitsTile(num_stages=3, programs_per_sm=3),
    "interpreter": LogitsTile(num_stages=1, programs_per_sm=1),
}
TOPK_TILES = {
    "sm90": TopkTile(),
    "sm120": TopkTile(),
    "interpreter": TopkTile(1024, held=2048, merge_chunk=1024, merge_held=4096, max_slices=8),
}
INTERPRETER_SM_COUNT = 3


def device_class(capability: tuple[int, int] | None) -> str:
    """The tables' key for a compute capability, None for the interpreter; others than sm_90 take sm_120's."""
    if capability is None:
        return "interpreter"
    return "sm90" if capability[0] == 9 else "sm120"


def logits_programs(tile: LogitsTile, batch: int, sm_count: int) -> int:
    """Grid size of `paged`: enough programs to fill the device, and a few for each group of rows."""
    groups = -(-batch // tile.group_rows)
    return max(tile.programs_per_sm * sm_count, PROGRAMS_PER_GROUP * groups)


def topk_slices(tile: TopkTile, batch: int, sm_count: int) -> int:
    """Programs that can share one row of `radix`."""
    return max(1, min(tile.max_slices, tile.programs_per_sm * sm_count // max(batch, 1)))


def cap_ladder(max_seq_len: int) -> list[int]:
    """The buckets of the capped path: powers of two from 2,048 entries up, then the full width."""
    if max_seq_len < 1:
        raise ValueError(f"max_seq_len: got {max_seq_len}, accepted is 1 or more")
    ladder = []
    cap = MIN_CAP
    while cap < max_seq_len:
        ladder.append(cap)
        cap *= 2
    return [*ladder, max_seq_len]


def context_cap(longest: int, max_seq_len: int) -> int:
    """The smallest bucket that holds `longest` entries; the full width if none does. Host arithmetic only."""
    return next((cap for cap in cap_ladder(max_seq_len) if cap >= longest), max_seq_len)
