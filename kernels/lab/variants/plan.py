"""The variants by name: the file with the idea, its option and tile, and which class of numbers comes out."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.sparse_mla.tiles import Tile

E4M3_STEP = 2.0**-4 / 3**0.5
"""Relative error of rounding to e4m3, root mean square: three bits of fraction, errors evenly spread within half a
step of the coarsest place."""
BF16_TOLERANCE = 3e-3
BF16_LSE_TOLERANCE = 1e-5
SAME_TILE = Tile(32, 32, 8)
FEWER_HEADS = Tile(16, 32, 8)


@dataclass(frozen=True)
class Variant:
    """One idea.

    Attributes:
        name: its key, and the `impl` of its measurements.
        idea: in a few words.
        module: the file in this folder that holds `attend`.
        option: what `attend` gets as OPTION; "file.function" stands for that function.
        parts: blocks that share a row's value columns.
        tile: what it is timed with: `SAME_TILE` where that is legal on sm_120, else fewer heads.
        rounded: how many operands of a result are rounded to e4m3, beside the cache; 0 in the class of bfloat16.
    """

    name: str
    idea: str
    module: str
    option: str | None = None
    parts: int = 1
    tile: Tile = SAME_TILE
    rounded: int = 0

    @property
    def tolerance(self) -> float:
        """Relative RMS error that the output may have.

        A rounded weight is off by `E4M3_STEP`; a rounded query moves a score by that share of the score's spread,
        which is taken to be at most 1. The two are independent.
        """
        return max(BF16_TOLERANCE, E4M3_STEP * self.rounded**0.5)

    def lse_tolerance(self, live: int) -> float:
        """Error that the LSE of a row with `live` candidates may have, relative where the LSE is above 1.

        The LSE averages its scores' errors: four standard deviations of the mean of `live` independent ones.
        """
        return BF16_LSE_TOLERANCE if not self.rounded else 4 * E4M3_STEP / max(live, 1) ** 0.5


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("byte_tiles", "tiles fetched as bytes", "byte_tiles", "_frame.dequantise"),
        Variant("half", "e4m3 to float16, scale inside", "byte_tiles", "half.dequantise_half"),
        Variant("folded", "scales folded into scores and weights", "folded", "bfloat16"),
        Variant("folded_half", "the same with float16 operands", "folded", "float16", tile=FEWER_HEADS),
        Variant("padded", "448 columns padded to 512", "padded", tile=FEWER_HEADS),
        Variant("value_columns", "value columns over two blocks", "value_columns", parts=2),
        Variant("scaled_scores", "block-scaled FP8 scores", "scaled_scores", rounded=1),
        Variant("scaled_both", "block-scaled FP8, both products", "scaled_both", tile=FEWER_HEADS, rounded=2),
    )
}


def variant_of(name: str) -> Variant:
    """A variant by name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in VARIANTS:
        raise ValueError(f"variant: got {name!r}, accepted are {tuple(VARIANTS)}")
    return VARIANTS[name]
