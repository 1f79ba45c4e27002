"""The lightning indexer's key cache: planar FP8 pages of 64 entries, the one place that knows their bytes.

A page is `[0, 8192)`: 64 keys of 128 e4m3 values, entry after entry, then `[8192, 8448)`: 64 plain float32
scales. The customary view `[pages, 64, 1, 132]` counts 132 bytes an entry, but a key is 128 bytes from the
next one and its scale is elsewhere: never index the view's second dimension.
"""

import torch

PAGE_ENTRIES = 64
INDEX_DIM = 128
INDEX_HEADS = 64
ENTRY_BYTES = INDEX_DIM + 4
VALUE_BYTES = PAGE_ENTRIES * INDEX_DIM
PAGE_BYTES = PAGE_ENTRIES * ENTRY_BYTES
FP8_MAX = 448.0
AMAX_FLOOR = 1e-4
ALIGNMENT = 4


def pages_for(entries: int) -> int:
    """Number of pages that hold `entries` entries."""
    return -(-entries // PAGE_ENTRIES)


def allocate_index_cache(
    num_pages: int, *, page_stride: int | None = None, storage_offset: int = 0, device="cpu", fill: int = 0
) -> torch.Tensor:
    """Allocate an index cache whose every byte, gaps included, is `fill`.

    Args:
        num_pages: pages of 64 entries.
        page_stride: bytes from page to page, at least 8,448 and a multiple of 4; 8,448 if None.
        storage_offset: bytes before the first page, a multiple of 4.
        fill: 0..255; 0x7F is NaN in e4m3, 0xFF NaN in e4m3 and in the scales.

    Returns:
        uint8 [num_pages, 64, 1, 132] with stride(0) = page_stride; the last page ends at the storage's end.

    Raises:
        ValueError: a stride or an offset that the layout does not allow.
    """
    page_stride = PAGE_BYTES if page_stride is None else page_stride
    if num_pages < 1:
        raise ValueError(f"num_pages: got {num_pages}, accepted is 1 or more")
    if page_stride < PAGE_BYTES or page_stride % ALIGNMENT:
        raise ValueError(
            f"page_stride: got {page_stride} bytes, accepted is {PAGE_BYTES} or more in steps of {ALIGNMENT}"
        )
    if storage_offset < 0 or storage_offset % ALIGNMENT:
        raise ValueError(f"storage_offset: got {storage_offset} bytes, accepted is a multiple of {ALIGNMENT}")
    nbytes = storage_offset + (num_pages - 1) * page_stride + PAGE_BYTES
    storage = torch.full((nbytes,), fill, dtype=torch.uint8, device=device)
    shape = (num_pages, PAGE_ENTRIES, 1, ENTRY_BYTES)
    return storage.as_strided(shape, (page_stride, ENTRY_BYTES, ENTRY_BYTES, 1), storage_offset)


def planes(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the two planes: e4m3 bytes uint8 [pages, 64, 128] and scales float32 [pages, 64]."""
    num_pages, page_stride, offset = cache.shape[0], cache.stride(0), cache.storage_offset()
    values = cache.as_strided((num_pages, PAGE_ENTRIES, INDEX_DIM), (page_stride, INDEX_DIM, 1), offset)
    footer = cache.as_strided((num_pages, 4 * PAGE_ENTRIES), (page_stride, 1), offset + VALUE_BYTES)
    return values, footer.view(torch.float32)


def quantize_index_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise keys to e4m3 with one plain float32 scale each: scale = max(amax, 1e-4) / 448.

    Args:
        keys: [N, 128] of any floating type.

    Returns:
        uint8 [N, 128], the e4m3 bytes, and float32 [N], the scales.
    """
    keys = keys.to(torch.float32)
    scales = keys.abs().amax(dim=1).clamp(min=AMAX_FLOOR) / FP8_MAX
    values = (keys / scales[:, None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return values.view(torch.uint8), scales


def store_index_keys(cache: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor) -> None:
    """Quantise `keys` [N, 128] and write them at `slots` [N] = page * 64 + entry; no other byte changes."""
    payload, scales = quantize_index_keys(keys.to(cache.device))
    store_quantized(cache, slots, payload, scales)


def store_quantized(cache, slots: torch.Tensor, payload: torch.Tensor, scales: torch.Tensor) -> None:
    """Write e4m3 bytes uint8 [N, 128] and scales float32 [N] at `slots` [N]."""
    values, scale_plane = planes(cache)
    slots = slots.to(cache.device, torch.int64)
    page, entry = slots // PAGE_ENTRIES, slots % PAGE_ENTRIES
    values[page, entry] = payload.to(cache.device)
    scale_plane[page, entry] = scales.to(cache.device)


def load_index_keys(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Read and dequantise the keys at `slots` [N] -> float64 [N, 128]."""
    values, scale_plane = planes(cache)
    slots = slots.to(cache.device, torch.int64)
    page, entry = slots // PAGE_ENTRIES, slots % PAGE_ENTRIES
    decoded = values[page, entry].view(torch.float8_e4m3fn).to(torch.float32).to(torch.float64)
    return decoded * scale_plane[page, entry].to(torch.float64)[:, None]


def live_lengths(seq_lens: torch.Tensor, max_seq_len: int, block_table: torch.Tensor) -> torch.Tensor:
    """Entries that a row really has: lengths below 0 count as 0, lengths past the buffers end with them."""
    capacity = min(max_seq_len, block_table.shape[1] * PAGE_ENTRIES)
    return seq_lens.reshape(-1).clamp(0, capacity)
