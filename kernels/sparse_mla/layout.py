"""The V4 cache page: the one place that knows which byte is what.

A page of P tokens holds P rows of 576 bytes, then P rows of 8 scale bytes, then padding up to its stride:

    [0, 576*P)      token t at 576*t: 448 bytes e4m3 (the "nope" part), 128 bytes = 64 bf16 (the rotary part)
    [576*P, 584*P)  token t at 576*P + 8*t: 7 UE8M0 bytes, one for each 64 nope values, and one unused byte
    [584*P, stride) padding; engines round the stride up to a multiple of 576

A UE8M0 byte b stands for 2**(b - 127). Key and value are the same 512 numbers. The tensor handed around is
uint8 `[num_pages, P, 1, 584]`, FlashMLA's view; only its address, its first stride and P have a meaning, since
a token's bytes do not lie in one row of that view.
"""

import torch

NOPE_DIM = 448
ROPE_DIM = 64
HEAD_DIM = NOPE_DIM + ROPE_DIM
GROUP = 64
NUM_GROUPS = NOPE_DIM // GROUP
TOKEN_BYTES = NOPE_DIM + 2 * ROPE_DIM
SCALE_BYTES = 8
ENTRY_BYTES = TOKEN_BYTES + SCALE_BYTES
E4M3_MAX = 448.0
MIN_AMAX = 1e-4
BYTE_DTYPES = (torch.uint8, torch.int8, torch.float8_e4m3fn)


def padded_page_stride(page_size: int) -> int:
    """Bytes from one page to the next as engines lay them out: `584 * page_size` rounded up to 576."""
    return -(-ENTRY_BYTES * page_size // TOKEN_BYTES) * TOKEN_BYTES


def view_pages(storage: torch.Tensor, num_pages: int, page_size: int, page_stride: int, offset: int = 0):
    """The `[num_pages, page_size, 1, 584]` view of flat uint8 `storage`, starting `offset` bytes in.

    Raises:
        ValueError: `page_stride` is shorter than the page, or the last page ends past the storage.
    """
    used = ENTRY_BYTES * page_size
    if page_stride < used:
        raise ValueError(f"page_stride: got {page_stride} bytes, a page of {page_size} tokens needs {used}")
    end = offset + (num_pages - 1) * page_stride + used
    if num_pages and end > storage.numel():
        raise ValueError(f"storage: holds {storage.numel()} bytes, the last page ends at byte {end}")
    return storage.as_strided(
        (num_pages, page_size, 1, ENTRY_BYTES),
        (page_stride, ENTRY_BYTES, ENTRY_BYTES, 1),
        storage.storage_offset() + offset,
    )


def allocate_cache(
    num_pages: int, page_size: int, *, page_stride: int | None = None, device="cpu", fill: int = 0
):
    """A cache of `num_pages` pages, every byte set to `fill`; uint8 `[num_pages, page_size, 1, 584]`.

    `page_stride` is in bytes and defaults to the padded stride. The last page ends where the storage ends.
    """
    stride = padded_page_stride(page_size) if page_stride is None else page_stride
    size = (num_pages - 1) * stride + max(stride, ENTRY_BYTES * page_size) if num_pages else 0
    storage = torch.full((size,), fill, dtype=torch.uint8, device=device)
    return view_pages(storage, num_pages, page_size, stride)


def token_rows(cache: torch.Tensor) -> torch.Tensor:
    """The token bytes of every page, uint8 `[num_pages, P, 576]`, sharing memory with `cache`."""
    raw = cache.view(torch.uint8)
    return raw.as_strided((raw.shape[0], raw.shape[1], TOKEN_BYTES), (raw.stride(0), TOKEN_BYTES, 1))


def scale_rows(cache: torch.Tensor) -> torch.Tensor:
    """The scale bytes of every page, uint8 `[num_pages, P, 8]`, sharing memory with `cache`."""
    raw = cache.view(torch.uint8)
    page_size = raw.shape[1]
    return raw.as_strided(
        (raw.shape[0], page_size, SCALE_BYTES),
        (raw.stride(0), SCALE_BYTES, 1),
        raw.storage_offset() + TOKEN_BYTES * page_size,
    )


def scale_exponents(amax: torch.Tensor) -> torch.Tensor:
    """The smallest integer e with `amax <= 448 * 2**e`, int32; exact, without a rounded logarithm."""
    mantissa, exponent = torch.frexp(amax.double().clamp_min(MIN_AMAX) / E4M3_MAX)
    return exponent - (mantissa == 0.5).int()


def quantize_kv(kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise latent rows to the page's bytes.

    Args:
        kv: `[N, 512]` bfloat16 (or wider), nope first.

    Returns:
        payload uint8 `[N, 576]` and scales uint8 `[N, 7]`.

    Raises:
        ValueError: `kv` is not `[N, 512]`.
    """
    if kv.dim() != 2 or kv.shape[1] != HEAD_DIM:
        raise ValueError(f"kv: got shape {tuple(kv.shape)}, accepted is [N, {HEAD_DIM}]")
    groups = kv[:, :NOPE_DIM].float().reshape(-1, NUM_GROUPS, GROUP)
    exponents = scale_exponents(groups.abs().amax(-1))
    # Two steps, because 2**-exponent alone can leave float32's range.
    scaled = torch.ldexp(groups.double(), -exponents[..., None]).clamp(-E4M3_MAX, E4M3_MAX).float()
    nope = scaled.to(torch.float8_e4m3fn).view(torch.uint8).reshape(-1, NOPE_DIM)
    rope = kv[:, NOPE_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8)
    return torch.cat([nope, rope], 1), (exponents + 127).to(torch.uint8)


def store_kv(cache: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    """Quantise `kv` `[N, 512]` into the token slots `[N]` (page * P + offset); the unused byte is left alone."""
    payload, scales = quantize_kv(kv)
    page, offset = slots.long() // cache.shape[1], slots.long() % cache.shape[1]
    token_rows(cache)[page, offset] = payload
    scale_rows(cache)[..., :NUM_GROUPS][page, offset] = scales


def load_kv(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Dequantise the token slots `[N]` to float64 `[N, 512]`; no other slot is read."""
    page, offset = slots.long() // cache.shape[1], slots.long() % cache.shape[1]
    payload = token_rows(cache)[page, offset]
    exponents = scale_rows(cache)[page, offset][:, :NUM_GROUPS].double() - 127
    nope = payload[:, :NOPE_DIM].contiguous().view(torch.float8_e4m3fn).double()
    rope = payload[:, NOPE_DIM:].contiguous().view(torch.bfloat16).double()
    return torch.cat([nope * torch.exp2(exponents).repeat_interleave(GROUP, 1), rope], 1)


def pack_cache(kv: torch.Tensor, page_size: int, *, page_stride: int | None = None) -> torch.Tensor:
    """A cache whose slot i holds row i of `kv` `[N, 512]`; the last page is filled up with zeros."""
    num_pages = -(-kv.shape[0] // page_size)
    cache = allocate_cache(num_pages, page_size, page_stride=page_stride, device=kv.device)
    store_kv(cache, torch.arange(kv.shape[0], device=kv.device), kv)
    return cache
