"""What layouts are spelled with, in Gluon: bits of a tensor's indices."""

from triton.experimental import gluon


@gluon.constexpr_function
def bits(first: int, count: int, dim: int, rank: int):
    """Basis vectors of `count` bits of a tensor's index `dim`, from bit `first` on."""
    return [[1 << bit if d == dim else 0 for d in range(rank)] for bit in range(first, first + count)]


@gluon.constexpr_function
def log2(x):
    """The number of a power of two's lowest bits."""
    return int(x).bit_length() - 1
