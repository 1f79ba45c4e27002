"""The packed dequantisation of four e4m3 bytes, carried out in NumPy from the kernels' own PTX text.

The few instructions that the text uses are executed one by one on arrays, so the check concerns what ships
and not a copy of it.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from kernels.sparse_mla._dequantize import SELECTOR

_FMA = "fma.rn.bf16x2"


def to_float(halves: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) as float64."""
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float64 to bfloat16 bit patterns (uint16), to nearest even; exact values with 24 bits or fewer only."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    for shift in (0, 16):
        x, y, z = (to_float(((v >> shift) & 0xFFFF).astype(np.uint16)) for v in (a, b, c))
        with np.errstate(invalid="ignore", over="ignore"):
            result |= to_bfloat16(x * y + z).astype(np.uint32) << shift
    return result


def _permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """`prmt`: each of the selector's lower four digits chooses a byte, or from 8 on eight times its sign."""
    together = a.astype(np.uint64) | (b.astype(np.uint64) << 32)
    result = np.zeros(together.shape, np.uint64)
    for place in range(4):
        digit = (selector.astype(np.uint64) >> (4 * place)) & 15
        chosen = (together >> (8 * (digit & 7))) & 0xFF
        result |= np.where(digit > 7, (chosen >> 7) * 0xFF, chosen) << (8 * place)
    return result.astype(np.uint32)


def run(ptx: str, word: np.ndarray, scale: np.ndarray, late: int = 0) -> np.ndarray:
    """Execute the kernels' PTX text.

    Args:
        ptx: a text that reads `$4` (the word), `$5` (the scale in both halves) and `$6` (the selector), and writes
            `$0` to `$3`.
        word, scale: uint32 of one shape.
        late: 16 bits for the upper half of the selector; the result does not depend on them.

    Returns:
        uint16 [4, ...]: the bfloat16 patterns of bytes 0 to 3, in the order of the word's bytes.

    Raises:
        ValueError: an instruction that is not carried out here.
    """
    word, scale = np.broadcast_arrays(np.asarray(word, np.uint32), np.asarray(scale, np.uint32))
    selector = np.full(word.shape, late << 16 | SELECTOR.value, np.uint32)
    registers = {"$4": word, "$5": scale, "$6": selector}

    def value(name: str) -> np.ndarray:
        return registers[name] if name in registers else np.full(word.shape, int(name, 0), np.uint32)

    for line in ptx.splitlines():
        text = line.strip().rstrip(";")
        if text in ("", "{", "}") or text.startswith(".reg"):
            continue
        operation, rest = text.split(None, 1)
        names = [name.strip() for name in re.sub(r"[{}]", "", rest).split(",")]
        if operation == "mov.b32" and len(names) == 3:
            low, high, source = names
            registers |= {low: value(source) & 0xFFFF, high: value(source) >> 16}
        elif operation == "mov.b32":
            registers[names[0]] = value(names[1])
        elif operation == "prmt.b32":
            registers[names[0]] = _permute(*(value(name) for name in names[1:]))
        elif operation in ("shl.b32", "shr.u32"):
            do = np.left_shift if operation == "shl.b32" else np.right_shift
            registers[names[0]] = do(value(names[1]), value(names[2]))
        elif operation in ("add.u32", "sub.u32"):
            do = np.add if operation == "add.u32" else np.subtract
            registers[names[0]] = do(value(names[1]), value(names[2]))
        elif operation in ("and.b32", "or.b32"):
            do = np.bitwise_and if operation == "and.b32" else np.bitwise_or
            registers[names[0]] = do(value(names[1]), value(names[2]))
        elif operation == _FMA:
            registers[names[0]] = _fma(*(value(name) for name in names[1:]))
        else:
            raise ValueError(f"ptx: {text!r} is not carried out here")
    return np.stack([registers[f"${place}"] for place in range(4)]).astype(np.uint16)


def numbers(bytes_: np.ndarray) -> np.ndarray:
    """e4m3 bytes as float64, by the format's definition; NaN for 0x7f and 0xff."""
    bytes_ = np.asarray(bytes_, np.int64)
    exponent, mantissa = (bytes_ >> 3) & 15, bytes_ & 7
    size = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), np.ldexp(1 + mantissa / 8.0, exponent - 7))
    size = np.where(bytes_ & 0x7F == 0x7F, np.nan, size)
    return np.where(bytes_ & 0x80, -size, size)


def every_pair(ptx: str) -> tuple[np.ndarray, np.ndarray]:
    """(float64 got, float64 want), both [256 bytes, 256 scale bytes]: the PTX text against the definition.

    Every byte is decoded in each of a word's four places; a place that disagrees with the others raises.
    """
    scales = np.arange(256, dtype=np.uint32)
    doubled = (scales << 7) | (scales << 23)
    decoded = []
    for turn in range(4):
        order = np.roll(np.arange(256, dtype=np.uint32), turn).reshape(64, 4)
        word = order[:, 0] | (order[:, 1] << 8) | (order[:, 2] << 16) | (order[:, 3] << 24)
        halves = run(ptx, word[:, None], doubled[None, :])
        found = np.empty((256, 256), np.uint16)
        found[order.T] = halves
        decoded.append(found)
    if any((one != decoded[0]).any() for one in decoded[1:]):
        raise AssertionError("a byte's value depends on its place in the word")
    want = np.ldexp(numbers(np.arange(256))[:, None], scales.astype(np.int64)[None, :] - 127)
    return to_float(decoded[0]), want


def same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Where two arrays hold the same numbers: signs of zeros count, and NaN equals NaN."""
    equal = (got == want) & (np.signbit(got) == np.signbit(want))
    return equal | (np.isnan(got) & np.isnan(want))


def exactness(ptx: str) -> pd.DataFrame:
    """Columns pairs, count, exact, nearest: how often the result is the exact product, or at least the
    bfloat16 nearest to it, over all 65,536 pairs of a byte and a scale byte.

    nearest is NaN where the pair stands for no number, or for another one than the format says.
    """
    got, want = every_pair(ptx)
    nearest = to_float(to_bfloat16(want))
    byte, scale = np.indices(got.shape)
    nan = byte & 0x7F == 0x7F
    fits = same(nearest, want)
    usual = ~nan & (scale > 0) & (scale < 255)
    kinds = [
        ("numbers whose product is a bfloat16", usual & fits),
        ("numbers whose product is none", usual & ~fits),
        ("scale byte 0, which stands for 0 here", ~nan & (scale == 0)),
        ("scale byte 255, no number in UE8M0", ~nan & (scale == 255)),
        ("the two bytes that are NaN", nan),
    ]
    exact, close = same(got, want), same(got, nearest)
    return pd.DataFrame(
        [
            (
                name,
                int(chosen.sum()),
                int(exact[chosen].sum()),
                int(close[chosen].sum()) if place < 2 else float("nan"),
            )
            for place, (name, chosen) in enumerate(kinds)
        ],
        columns=["pairs", "count", "exact", "nearest"],
    )


def exact_scales(ptx: str) -> tuple[int, int]:
    """The first and the last scale byte with which all 254 numbers come out exactly; all between do, too."""
    got, want = every_pair(ptx)
    number = np.arange(256) & 0x7F != 0x7F
    good = np.flatnonzero(same(got, want)[number].all(axis=0))
    if len(good) == 0 or len(good) != good[-1] - good[0] + 1:
        raise AssertionError(f"the exact scales are no range: {good.tolist()}")
    return int(good[0]), int(good[-1])


def steps(ptx: str, byte: int) -> pd.DataFrame:
    """Columns place, bits, value: a byte as e4m3, moved into a bfloat16, and after the first product.

    byte: 0 to 255; the scale is left out.
    """
    pattern = ((byte & 0x80) << 8) | ((byte & 0x7F) << 4)
    lifted = int(run(ptx, np.uint32(byte), np.uint32(127 << 7 | 127 << 23))[0])
    rows = [
        ("e4m3", f"{byte:08b}", float(numbers(byte))),
        ("its bits in a bfloat16", f"{pattern:016b}", float(to_float(np.uint16(pattern)[None])[0])),
        ("times 2 to the 120", f"{lifted:016b}", float(to_float(np.uint16(lifted)[None])[0])),
    ]
    widths = {8: (1, 4, 3), 16: (1, 8, 7)}
    split = []
    for place, bits, number in rows:
        sign, exponent, _ = widths[len(bits)]
        split.append(
            (place, f"{bits[:sign]} {bits[sign : sign + exponent]} {bits[sign + exponent :]}", number)
        )
    return pd.DataFrame(split, columns=["place", "bits", "value"])
