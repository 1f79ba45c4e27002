"""The tiles and split counts that the planner may choose: a table tuned on a GPU, and a rule where it is silent.

`tuned.json` holds the rows; `python -m kernels.lab tune` measures them again.
"""

import json
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

# When the combine kernel's programs may start to take their places: with the kernel before it, when a block of that
# is about to write, or at the blocks' ends. The kernels take them as numbers, neither 1 nor multiples of 16: for
# those Triton would compile them again.
RELEASES = {"start": 2, "result": 3, "exit": 4}
# Heads of a tile with candidates as rows
FEW_HEADS_MOST = 8
# The two of them: a block alone, and two blocks together. Room for as many tiles as `num_stages`, an even number, since
# two teams take them in turn
FEW_HEADS_TILES = ((FEW_HEADS_MOST, 32, 8, 4, False, 4, False), (FEW_HEADS_MOST, 32, 8, 8, False, 4, True))
# Candidates that wide tiles are counted in, and the units of the largest share that is no loop over tiles
WIDE_UNIT = 16
WIDE_SHARE = 10
TABLE = Path(__file__).with_name("tuned.json")


@dataclass(frozen=True)
class Tile:
    """A program's share: `block_h` heads by `block_t` tokens on `num_warps` warps.

    `num_stages` is the depth of the loop's pipeline (rung `staged`: tile buffers in shared memory). The rest is for
    rung `staged` alone: `wgmma` asks for sm_90's warp-group products; `producer_warps` further warps fetch and
    dequantise, or only ask for rows, while `num_warps` multiply; a `pair` of blocks shares what else a block has.
    """

    block_h: int
    block_t: int
    num_warps: int
    num_stages: int = 1
    wgmma: bool = False
    producer_warps: int = 0
    pair: bool = False

    @property
    def launched_warps(self) -> int:
        """Warps that Triton is asked for: the producers where there are any, which call on the consumers."""
        return self.producer_warps or self.num_warps

    @property
    def wide(self) -> bool:
        """Whether the tile is of `wide_kernel`: 128 candidates at once by `wgmma`, without producers."""
        return self.wgmma and self.block_t == 128 and not self.producer_warps

    @property
    def dequantises_apart(self) -> bool:
        """Whether warps of their own fetch and dequantise; those of a tile for few heads only ask for rows."""
        return self.producer_warps > 0 and not self.few

    @property
    def few(self) -> bool:
        """Whether the tile is of `few_heads_kernel`: up to 8 heads, and candidates as the rows of both products."""
        return self.block_h == FEW_HEADS_MOST

    def __post_init__(self):
        for name in ("block_h", "block_t", "num_warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"{name}: got {value}, accepted are powers of two")
        if self.num_stages < 1:
            raise ValueError(f"num_stages: got {self.num_stages}, accepted are integers from 1")
        if (self.few or self.pair) and astuple(self) not in FEW_HEADS_TILES:
            raise ValueError(
                f"tile: got {self}, accepted of 8 heads are {FEW_HEADS_TILES}, and no other pairs"
            )
        if self.producer_warps and self.num_stages > 2 and not self.few:
            # A third buffer would find the numbers of its named barriers taken
            raise ValueError(f"num_stages: got {self.num_stages}, accepted with producers are 1 and 2")
        if self.wide and (self.block_h, self.num_warps, self.num_stages) != (64, 8, 1):
            raise ValueError(
                f"tile: got {self}, a wide tile is 64 heads by 128 candidates on 8 warps, one stage"
            )


SERIAL = Tile(1, 1, 4)
SIMT = Tile(1, 16, 8)
FEW_HEADS = Tile(16, 32, 8)
MANY_HEADS = Tile(32, 32, 8)


@dataclass(frozen=True)
class Choice:
    """A row of the table: for up to `heads` heads, `candidates` candidates and a batch of `batch`."""

    device_class: str
    heads: int
    candidates: int
    batch: int
    tile: Tile
    num_splits: int
    release: str = "start"


def wide_share(topk: int, extra_topk: int, num_splits: int) -> int:
    """Units of the largest share of a row that wide tiles take, from the widths alone."""
    units = -(-topk // WIDE_UNIT) + -(-extra_topk // WIDE_UNIT)
    return -(-units // num_splits)


def device_class(device, tile_class: str) -> str:
    """The part of the table that a device reads: "sm90" for Hopper's own tiles, "sm120" for everything else."""
    return "sm90" if tile_class == "native" and device.capability[0] == 9 else "sm120"


@cache
def choices() -> tuple[Choice, ...]:
    """Every row of the table, in the order of the file."""
    rows = json.loads(TABLE.read_text())["staged"]
    return tuple(Choice(**row | {"tile": Tile(*row["tile"])}) for row in rows)


def fastest() -> tuple[Choice, ...]:
    """The first row of every shape: what the planner takes unless a call does not suit it."""
    shapes = {(row.device_class, row.heads, row.candidates, row.batch): row for row in reversed(choices())}
    return tuple(reversed(shapes.values()))


def _up(values, wanted: int) -> int:
    """The smallest listed value that is not below `wanted`, or the largest there is."""
    values = sorted(set(values))
    return next((v for v in values if v >= wanted), values[-1])


def _near(values, wanted: int) -> int:
    """The listed value with the smallest ratio to `wanted`, above or below."""
    return min(sorted(set(values)), key=lambda v: max(v, wanted) / min(v, max(wanted, 1)))


def staged_choice(
    batch: int, heads: int, candidates: int, device, tile_class: str, suits=lambda choice: True
) -> Choice:
    """The tuned row nearest to a shape: heads and batch rounded up, candidates to the nearest by ratio.

    A shape may have a second row, behind the fastest, for calls that the first does not suit.
    """
    rows = [row for row in choices() if row.device_class == device_class(device, tile_class)]
    for name, wanted, pick in (
        ("heads", heads, _up),
        ("candidates", candidates, _near),
        ("batch", batch, _up),
    ):
        nearest = pick([getattr(row, name) for row in rows], wanted)
        rows = [row for row in rows if getattr(row, name) == nearest]
    return next((row for row in rows if suits(row)), rows[-1])


def tile_candidates(impl: str, device, tile_class: str = "native") -> list[Tile]:
    """Every tile that the planner can return for a rung on a device."""
    if impl == "staged":
        name = device_class(device, tile_class)
        return list(dict.fromkeys(row.tile for row in choices() if row.device_class == name))
    return {"serial": [SERIAL], "simt": [SIMT]}.get(impl, [FEW_HEADS, MANY_HEADS])


def plain_tile(impl: str, heads: int) -> Tile:
    """The tile of a rung in plain Triton."""
    if impl in ("serial", "simt"):
        return SERIAL if impl == "serial" else SIMT
    return FEW_HEADS if heads <= 16 else MANY_HEADS
