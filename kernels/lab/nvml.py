"""Clocks, temperature, power and throttling of the GPU, read with nvidia-ml-py where it is installed."""

from __future__ import annotations

from typing import Any


def device_state() -> dict[str, Any]:
    """Clocks (MHz), temperature (C), power (W) and throttle reasons of the GPU, through nvidia-ml-py.

    Every value is None, and `reason` says why, where the package, the driver or a counter is absent.
    """
    state: dict[str, Any] = dict.fromkeys(
        ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle", "driver", "reason")
    )
    try:
        import pynvml
    except ImportError:
        return {**state, "reason": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {**state, "reason": f"NVML: {error}"}
    try:
        handle = _nvml_handle(pynvml)
        readers = {
            "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
            "throttle": lambda: _throttle(pynvml, handle),
            "driver": lambda: _text(pynvml.nvmlSystemGetDriverVersion()),
        }
        lacking = []
        for name, read in readers.items():
            try:
                state[name] = read()
            except (pynvml.NVMLError, AttributeError):
                lacking.append(name)
        if lacking:
            state["reason"] = f"NVML does not report {', '.join(lacking)}"
    except pynvml.NVMLError as error:
        state["reason"] = f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()
    return state


def _nvml_handle(pynvml):
    """NVML numbers GPUs its own way, so torch's device is found by its UUID."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is not None:
        for name in (f"GPU-{uuid}", str(uuid)):
            try:
                return pynvml.nvmlDeviceGetHandleByUUID(name.encode())
            except pynvml.NVMLError:
                continue
    return pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _throttle(pynvml, handle) -> list[str]:
    """Names of the active throttle reasons, the idle one left out."""
    active = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    names = {
        "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown",
        "SwThermalSlowdown": "thermal (software)",
        "HwThermalSlowdown": "thermal (hardware)",
        "HwPowerBrakeSlowdown": "power brake",
        "ApplicationsClocksSetting": "application clocks",
    }
    found = []
    for suffix, name in names.items():
        for stem in ("nvmlClocksThrottleReason", "nvmlClocksEventReason"):
            bit = getattr(pynvml, stem + suffix, None)
            if bit is not None and active & bit:
                found.append(name)
                break
    return found
