"""Bytes of the planar page, the quantiser's arithmetic, strides and offsets."""

import pytest
import torch

from kernels.indexer import layout


def test_page_is_planar():
    cache = layout.allocate_index_cache(2)
    keys = torch.zeros(64, 128)
    keys[:, 0] = torch.arange(64) + 1.0
    layout.store_index_keys(cache, torch.arange(64) + 64, keys)
    page = cache.as_strided((8448,), (1,), 8448)
    for entry in range(64):
        value = page[entry * 128 : entry * 128 + 1].view(torch.float8_e4m3fn).float()
        assert value == 448.0
        scale = page[8192 + 4 * entry : 8192 + 4 * entry + 4].view(torch.float32)
        assert scale == torch.tensor((entry + 1.0), dtype=torch.float32) / 448
    assert not cache[0].any()


@pytest.mark.parametrize("magnitude", [0.0, 1e-9, 1e-4, 1.0, 448.0, 3e4])
def test_scale_has_a_floor_and_values_stay_finite(magnitude):
    payload, scales = layout.quantize_index_keys(torch.full((1, 128), -magnitude))
    assert scales.dtype == torch.float32
    torch.testing.assert_close(scales, torch.tensor([max(magnitude, 1e-4) / 448]), rtol=1e-6, atol=0)
    decoded = payload.view(torch.float8_e4m3fn).float() * scales[:, None]
    assert decoded.isfinite().all()
    torch.testing.assert_close(decoded, torch.full((1, 128), -magnitude), rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("page_stride,storage_offset", [(None, 0), (8452, 4), (4 * 8448, 8448), (16384, 8)])
def test_store_touches_only_its_entries(page_stride, storage_offset):
    cache = layout.allocate_index_cache(5, page_stride=page_stride, storage_offset=storage_offset, fill=0xA5)
    storage = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage())
    assert len(storage) == storage_offset + 4 * (page_stride or 8448) + 8448
    before = storage.clone()
    slots = torch.tensor([0, 63, 64 * 3 + 17, 64 * 4 + 63])
    keys = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    layout.store_index_keys(cache, slots, keys)
    loaded = layout.load_index_keys(cache, slots)
    assert ((loaded - keys.double()).norm() / keys.norm()) < 4e-2
    expected = set()
    for slot in slots.tolist():
        base = storage_offset + slot // 64 * (page_stride or 8448)
        expected |= set(range(base + slot % 64 * 128, base + slot % 64 * 128 + 128))
        expected |= set(range(base + 8192 + slot % 64 * 4, base + 8192 + slot % 64 * 4 + 4))
    changed = set((storage != before).nonzero().flatten().tolist())
    assert changed <= expected and len(changed) > 0.9 * len(expected)


@pytest.mark.parametrize(
    "arguments,name",
    [
        ({"num_pages": 0}, "num_pages"),
        ({"num_pages": 1, "page_stride": 8447}, "page_stride"),
        ({"num_pages": 1, "page_stride": 8450}, "page_stride"),
        ({"num_pages": 1, "storage_offset": 2}, "storage_offset"),
        ({"num_pages": 1, "storage_offset": -4}, "storage_offset"),
    ],
)
def test_allocation_refuses(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: got .*accepted"):
        layout.allocate_index_cache(**arguments)
