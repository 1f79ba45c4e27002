"""The table of device facts: complete, sourced, consistent, and honest about what is disputed."""

import csv

import pytest

from kernels.lab import devices

NEEDED = {
    "name",
    "target",
    "sm_count",
    "boost_clock",
    "dram_bandwidth",
    "l2",
    "l2_bandwidth",
    "fp32",
    "bf16_tensor",
    "shared_optin",
    "shared_per_sm",
    "registers_per_sm",
    "warps_per_sm",
    "fma_lanes",
    "bf16_tensor_flops_per_clock",
}
MARKS = {"source", "stated", "press", "derived", "measured", "disputed", "unverified"}


@pytest.mark.parametrize("key", devices.devices())
def test_a_product_has_the_facts_that_the_models_need(key):
    assert NEEDED - set(devices.device_of(key).facts) == set()


def test_every_fact_has_a_source_and_a_known_mark_and_stands_once():
    with devices.DATA.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] for row in rows)
    assert {row["mark"] for row in rows} <= MARKS
    names = [(row["subject"], row["fact"]) for row in rows]
    assert len(names) == len(set(names))


def test_disputed_values_are_marked():
    pro = devices.device_of("rtx-pro-6000")
    assert pro.facts["l2"].mark == "disputed" and "96" in pro.facts["l2"].note
    assert devices.device_of("rtx-pro-6000-server").facts["dram_bandwidth"].mark == "disputed"


@pytest.mark.parametrize("key", devices.devices())
def test_rates_agree_with_clock_and_multiprocessors(key):
    """Two columns: TFLOP/s as published, and lanes times clock. Tensor rates may use another clock."""
    device = devices.device_of(key)
    clock = device["sm_count"] * device["boost_clock"] * 1e6 / 1e12
    assert 2 * device["fma_lanes"] * clock == pytest.approx(device["fp32"], rel=0.02)
    assert device["bf16_tensor_flops_per_clock"] * clock == pytest.approx(device["bf16_tensor"], rel=0.09)


def test_a_target_is_found_under_its_usual_spellings():
    target = devices.target_of("sm_120")
    assert (target.arch, target.capability, target.shared_optin) == (120, (12, 0), 101_376)
    assert {devices.target_of(n) for n in ("120", "sm120", "sm_120a", (12, 0), target)} == {target}
    assert not target.warpgroup_mma and devices.target_of("sm_90").warpgroup_mma


@pytest.mark.parametrize("name", ["sm_119", "gfx942", "", "12.0"])
def test_an_unknown_target_lists_what_is_accepted(name):
    with pytest.raises(ValueError, match="target: got .*accepted are sm_80"):
        devices.target_of(name)


def test_a_product_is_found_by_its_driver_name():
    assert devices.device_of("NVIDIA H200").key == "h200"
    with pytest.raises(ValueError, match="device: got 'gtx'"):
        devices.device_of("gtx")
    with pytest.raises(KeyError, match="colour"):
        devices.device_of("h200")["colour"]


def test_an_architecture_leaves_room_for_the_reserved_bytes():
    for name in devices.targets():
        target = devices.target_of(name)
        assert target.shared_optin == target.shared_per_sm - target.shared_reserved


def test_the_present_device_is_described_without_naming_the_machine(monkeypatch):
    import torch

    class Properties:
        name, major, minor, multi_processor_count = "NVIDIA H200", 9, 0, 132
        shared_memory_per_block_optin, L2_cache_size, total_memory, uuid = (
            232_448,
            52_428_800,
            1 << 37,
            "GPU-1-2",
        )

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    found = devices.present()
    assert (found["target"], found["key"], found["smem_optin_bytes"]) == ("sm_90", "h200", 232_448)
    assert len(found["uuid_sha256"]) == 12 and int(found["uuid_sha256"], 16) >= 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.present() is None
