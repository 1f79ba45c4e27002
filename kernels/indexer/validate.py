"""Refuses arguments that the kernels would misread, before anything is launched or written."""

import torch

from .layout import (
    ALIGNMENT,
    ENTRY_BYTES,
    INDEX_DIM,
    INDEX_HEADS,
    PAGE_BYTES,
    PAGE_ENTRIES,
    live_lengths,
    pages_for,
)

QUERY_DTYPES = (torch.float8_e4m3fn, torch.bfloat16)
MAX_ENTRIES = 2**31 - 2 * PAGE_ENTRIES


class ArgumentError(ValueError):
    """An argument has a shape, dtype, stride, device or value that the operator does not accept."""


def reject(name: str, got, accepted: str):
    """Raise an `ArgumentError` that names the argument, what came and what is accepted."""
    raise ArgumentError(f"{name}: got {got}, accepted is {accepted}")


def check_tensor(name: str, value, device, dtype, shape: tuple) -> None:
    """Require a tensor of `dtype` on `device` whose shape matches `shape`; a string there takes any size."""
    if not isinstance(value, torch.Tensor):
        reject(name, type(value).__name__, "a torch.Tensor")
    if value.device != device:
        reject(name, f"device {value.device}", f"the device of the first argument, {device}")
    if value.dtype != dtype:
        reject(name, f"dtype {value.dtype}", str(dtype))
    fits = value.dim() == len(shape) and all(
        isinstance(want, str) or have == want for have, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        reject(name, f"shape {list(value.shape)}", f"[{', '.join(str(want) for want in shape)}]")


def check_impl(impl: str, accepted: tuple[str, ...]) -> None:
    """Require one of `accepted`."""
    if impl not in accepted:
        reject("impl", repr(impl), " or ".join(repr(name) for name in accepted))


def check_current(name: str, tensor) -> None:
    """Require the current CUDA device: Triton launches there, whatever device a pointer belongs to."""
    if tensor.device.type == "cuda" and tensor.device.index != torch.cuda.current_device():
        reject(name, f"device {tensor.device}", f"the current device, cuda:{torch.cuda.current_device()}")


def check_query(q) -> torch.Tensor:
    """`q` as [B, 64, 128]; [B, 1, 64, 128] is accepted, too."""
    if not isinstance(q, torch.Tensor):
        reject("q", type(q).__name__, "a torch.Tensor")
    if q.dtype not in QUERY_DTYPES:
        reject("q", f"dtype {q.dtype}", " or ".join(str(dtype) for dtype in QUERY_DTYPES))
    if q.dim() == 4 and q.shape[1] == 1:
        q = q[:, 0]
    if q.dim() != 3 or tuple(q.shape[1:]) != (INDEX_HEADS, INDEX_DIM):
        reject("q", f"shape {list(q.shape)}", f"[B, {INDEX_HEADS}, {INDEX_DIM}]")
    if q.stride(2) != 1:
        reject("q", f"stride {q.stride(2)} in the last dimension", "1")
    check_current("q", q)
    return q


def check_lengths(seq_lens, device, batch: int) -> torch.Tensor:
    """`seq_lens` as [B]; [B, 1] is accepted, too, and any stride."""
    if isinstance(seq_lens, torch.Tensor) and seq_lens.dim() == 2 and seq_lens.shape[1] == 1:
        seq_lens = seq_lens[:, 0]
    check_tensor("seq_lens", seq_lens, device, torch.int32, (batch,))
    return seq_lens


def check_block_table(block_table, device, batch: int) -> None:
    """Require int32 [B, W] with W >= 1, any strides."""
    check_tensor("block_table", block_table, device, torch.int32, (batch, "W"))
    if not 1 <= block_table.shape[1] <= pages_for(MAX_ENTRIES):
        reject("block_table", f"width {block_table.shape[1]}", f"1 to {pages_for(MAX_ENTRIES)} pages")


def check_cache(index_cache, device) -> None:
    """Require the planar cache's view: uint8 [pages, 64, 1, 132], aligned to 4 bytes."""
    shape = ("pages", PAGE_ENTRIES, 1, ENTRY_BYTES)
    check_tensor("index_cache", index_cache, device, torch.uint8, shape)
    pages, stride, offset = index_cache.shape[0], index_cache.stride(0), index_cache.storage_offset()
    if pages < 1:
        reject("index_cache", "0 pages", "at least 1 page")
    if index_cache.stride(1) != ENTRY_BYTES or index_cache.stride(3) != 1:
        reject(
            "index_cache",
            f"strides {index_cache.stride()}",
            f"(page stride, {ENTRY_BYTES}, any, 1): the page's bytes are one run",
        )
    if (pages > 1 and stride < PAGE_BYTES) or stride % ALIGNMENT:
        reject("index_cache", f"page stride {stride} bytes", f"{PAGE_BYTES} or more in steps of {ALIGNMENT}")
    if offset % ALIGNMENT or (index_cache.device.type != "meta" and index_cache.data_ptr() % ALIGNMENT):
        reject("index_cache", f"storage offset {offset} bytes", f"a multiple of {ALIGNMENT}")


def check_width(name: str, width) -> int:
    """Require a number of entries that 32-bit positions can count."""
    if type(width) is not int or not 1 <= width <= MAX_ENTRIES:
        reject(name, repr(width), f"an integer from 1 to {MAX_ENTRIES}")
    return width


def check_out(out, device, dtype, shape: tuple) -> None:
    """Require `out` of exactly `shape`, rows contiguous, at any row stride that keeps rows apart."""
    check_tensor("out", out, device, dtype, shape)
    if out.stride(1) != 1 and shape[1] > 1:
        reject("out", f"stride {out.stride(1)} in the last dimension", "1")
    if shape[0] > 1 and out.stride(0) < shape[1]:
        reject("out", f"row stride {out.stride(0)}", f"at least the width, {shape[1]}")


def check_pages(index_cache, seq_lens, block_table, max_seq_len: int) -> None:
    """Checking mode: every live page lies inside the cache. Reads the lengths on the host."""
    lengths = live_lengths(seq_lens, max_seq_len, block_table)
    column = torch.arange(block_table.shape[1], device=block_table.device)
    needed = column[None, :] * PAGE_ENTRIES < lengths[:, None]
    bad = (needed & (block_table >= index_cache.shape[0])).nonzero()
    if len(bad):
        row, position = bad[0].tolist()
        reject(
            "block_table",
            f"page {int(block_table[row, position])} at row {row}, position {position}",
            f"a page below {index_cache.shape[0]}, or a negative one for none",
        )
