"""The page's bytes: the quantiser's exact scales, planar tokens, any page size, stride and storage offset."""

import struct

import pytest
import torch

from kernels.sparse_mla import allocate_cache, layout, load_kv, pack_cache, quantize_kv, store_kv


def one_row(amax: float) -> torch.Tensor:
    """float32 `[1, 512]` whose first group peaks at `-amax` and whose other columns are smaller."""
    kv = torch.zeros(1, 512)
    kv[0, :64] = amax / 3
    kv[0, 17] = -amax
    return kv


def neighbours(x: float) -> tuple[float, float]:
    """The float32 values just below and just above `x`."""
    bits = struct.unpack("<i", struct.pack("<f", x))[0]
    return tuple(struct.unpack("<f", struct.pack("<i", bits + step))[0] for step in (-1, 1))


@pytest.mark.parametrize("k", [k for k in range(-20, 21)])
def test_scale_bytes_at_exact_powers_and_beside_them(k, tally):
    """The byte is the smallest e with amax <= 448 * 2**e: a rounded logarithm is off by one here."""
    tally("UE8M0 rounding", 3)
    exact = 448.0 * 2.0**k
    below, above = neighbours(exact)
    got = [int(quantize_kv(one_row(amax))[1][0, 0]) for amax in (below, exact, above)]
    assert got == [127 + k, 127 + k, 128 + k]


@pytest.mark.parametrize("amax", [0.0, 1e-9, 1e-4])
def test_small_groups_share_the_floor(amax, tally):
    """Below amax 1e-4 the scale stays at 2**-22, the least power of two from 1e-4 / 448 on."""
    tally("UE8M0 rounding")
    payload, scales = quantize_kv(one_row(amax))
    assert scales[0].tolist() == [105] * 7
    assert bool((scales >= 1).all())
    value = payload[0, :448].view(torch.float8_e4m3fn).float()
    assert bool(value.isfinite().all())


def test_the_largest_magnitudes_stay_finite_bytes():
    kv = torch.full((1, 512), 3.3e38)
    payload, scales = quantize_kv(kv)
    assert scales[0].tolist() == [247] * 7
    assert bool(payload[0, :448].view(torch.float8_e4m3fn).float().isfinite().all())


@pytest.mark.parametrize("amax", [448.0, 447.0, 3.0, 1e-3, 1e4])
def test_values_round_to_the_nearest_code(amax):
    """Half a step of e4m3 at most: 2**-4 of the value, or half of 2**-9 of the scale near zero."""
    kv = torch.randn(4, 512).clamp(-1, 1) * amax
    kv[:, 0] = amax
    cache = pack_cache(kv.bfloat16(), 4)
    back = load_kv(cache, torch.arange(4))
    source = kv.bfloat16().double()
    scale = torch.exp2(quantize_kv(kv.bfloat16())[1].double() - 127).repeat_interleave(64, 1)
    error = (back - source)[:, :448].abs()
    assert bool((error <= torch.maximum(source[:, :448].abs() * 2**-4, scale * 2**-10)).all())
    assert torch.equal(back[:, 448:], source[:, 448:])


def test_the_rope_keeps_its_bits():
    bits = torch.arange(64, dtype=torch.int32).to(torch.int16) * 1021
    kv = torch.zeros(1, 512, dtype=torch.bfloat16)
    kv[0, 448:] = bits.view(torch.bfloat16)
    payload, _ = quantize_kv(kv)
    assert torch.equal(payload[0, 448:], bits.view(torch.uint8))


@pytest.mark.parametrize("page_size", [1, 2, 3, 53, 61, 64, 128, 256])
@pytest.mark.parametrize("offset", [0, 16, 4, 2, 1, 37])
def test_every_byte_is_where_the_format_puts_it(page_size, offset, tally):
    """Planar pages, written out by hand; the eighth scale byte, gaps and other slots are left alone."""
    tally("page geometry of the layout")
    stride = layout.padded_page_stride(page_size) + (offset % 5)
    used = 584 * page_size
    storage = torch.full((offset + 2 * stride + used,), 0xEE, dtype=torch.uint8)
    cache = layout.view_pages(storage, 3, page_size, stride, offset)
    assert cache.shape == (3, page_size, 1, 584) and cache.storage_offset() == offset
    slots = torch.tensor([3 * page_size - 1, page_size])
    kv = torch.randn(2, 512).bfloat16()
    store_kv(cache, slots, kv)
    payload, scales = quantize_kv(kv)
    expected = torch.full_like(storage, 0xEE)
    for row, slot in enumerate(slots.tolist()):
        page, token = offset + slot // page_size * stride, slot % page_size
        expected[page + 576 * token : page + 576 * token + 576] = payload[row]
        start = page + 576 * page_size + 8 * token
        expected[start : start + 7] = scales[row]
    assert torch.equal(storage, expected)
    assert torch.allclose(load_kv(cache, slots)[:, 448:], kv[:, 448:].double(), rtol=0)


def test_padded_strides():
    strides = {2: 1728, 64: 37_440, 128: 74_880, 256: 149_760}
    assert {page: layout.padded_page_stride(page) for page in strides} == strides
    for page in range(1, 300):
        stride = layout.padded_page_stride(page)
        assert stride % 576 == 0 and 0 <= stride - 584 * page < 576


def test_allocate_cache():
    cache = allocate_cache(3, 64, fill=9)
    assert cache.stride() == (37_440, 584, 584, 1) and bool((cache == 9).all())
    assert allocate_cache(2, 53, page_stride=584 * 53).stride(0) == 584 * 53
    assert allocate_cache(0, 64).shape == (0, 64, 1, 584)
    with pytest.raises(ValueError, match="^page_stride: got 37375 bytes, a page of 64 tokens needs 37376"):
        allocate_cache(2, 64, page_stride=584 * 64 - 1)
    with pytest.raises(ValueError, match="^storage: holds 100 bytes, the last page ends at byte 584"):
        layout.view_pages(torch.zeros(100, dtype=torch.uint8), 1, 1, 584)


def test_a_view_of_a_view_counts_its_offset_once():
    storage = torch.zeros(5 + 3 * 1728, dtype=torch.uint8)
    cache = layout.view_pages(storage[5:], 3, 2, 1728)
    kv = torch.randn(6, 512).bfloat16()
    store_kv(cache, torch.arange(6), kv)
    inner = layout.view_pages(storage[5:], 2, 2, 1728, 1728)
    assert torch.equal(load_kv(inner, torch.arange(4)), load_kv(cache, torch.arange(2, 6)))


def test_pack_cache_fills_the_last_page_with_zeros():
    kv = torch.randn(7, 512).bfloat16()
    cache = pack_cache(kv, 3)
    assert cache.shape[0] == 3
    assert torch.equal(load_kv(cache, torch.tensor([7, 8]))[:, :448], torch.zeros(2, 448).double())


@pytest.mark.parametrize("shape", [(512,), (2, 511), (2, 3, 512)])
def test_kv_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"^kv: got shape .*, accepted is \[N, 512\]"):
        quantize_kv(torch.zeros(shape))
