"""The tiles that the planner may choose, by device class."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """A program's share: `block_h` heads by `block_t` tokens, on `num_warps` warps, loop pipelined `num_stages` deep."""

    block_h: int
    block_t: int
    num_warps: int
    num_stages: int = 1

    def __post_init__(self):
        for name, low in (("block_h", 1), ("block_t", 1), ("num_warps", 1)):
            value = getattr(self, name)
            if value < low or value & (value - 1):
                raise ValueError(f"{name}: got {value}, accepted are powers of two")
        if self.num_stages < 1:
            raise ValueError(f"num_stages: got {self.num_stages}, accepted are integers from 1")


SERIAL = Tile(1, 1, 4)
SIMT = Tile(1, 16, 4)
FEW_HEADS = Tile(16, 32, 4)
SM120 = Tile(32, 32, 8)
NATIVE_SM90 = Tile(64, 64, 8)


def _wide(device, tile_class) -> bool:
    return tile_class == "native" and device.capability[0] == 9


def tile_candidates(impl: str, device, tile_class: str = "native") -> list[Tile]:
    """Every tile that `tuned` can return for a rung on a device."""
    if impl == "serial":
        return [SERIAL]
    if impl == "simt":
        return [SIMT]
    return [FEW_HEADS, NATIVE_SM90 if _wide(device, tile_class) else SM120]


def tuned(impl: str, batch: int, heads: int, candidates: int, device, tile_class: str) -> tuple[Tile, int | None]:
    """The tile, and the split count where it was tuned, for a rung and a shape."""
    if impl == "serial":
        return SERIAL, None
    if impl == "simt":
        return SIMT, None
    if heads <= 16:
        return FEW_HEADS, None
    return (NATIVE_SM90 if _wide(device, tile_class) else SM120), None
