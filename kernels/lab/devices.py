"""Facts about GPUs, each with its source, and a description of the GPU of this machine.

`data/devices.csv` has one fact a row: subject ("sm_120" for what an architecture fixes, "rtx-pro-6000" for a
product, which takes over its architecture's facts), fact, value, unit, mark, source, note. Marks: source
(read in code or documentation), stated (an issue or report), press (datasheet, specification page), derived
(arithmetic), measured (by this project), disputed (sources disagree; the note says how), unverified (quoted
without a primary source).
"""

import csv
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data" / "devices.csv"


@dataclass(frozen=True)
class Fact:
    """One number (or name) with unit, mark, source and note."""

    value: float | int | str
    unit: str
    mark: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Target:
    """What a compiler target allows a block and a multiprocessor.

    Sizes in bytes; registers are 32-bit. `arch` is 120 for "sm_120".
    """

    name: str
    arch: int
    shared_per_sm: int
    shared_optin: int
    shared_reserved: int
    registers_per_sm: int
    registers_per_thread: int
    warps_per_sm: int
    blocks_per_sm: int
    warpgroup_mma: bool
    tensor_memory: bool

    @property
    def capability(self) -> tuple[int, int]:
        return divmod(self.arch, 10)


@dataclass(frozen=True)
class Device:
    """A product: its facts by name, those of its architecture included."""

    key: str
    facts: dict[str, Fact]

    def __getitem__(self, fact: str) -> float | int | str:
        if fact not in self.facts:
            raise KeyError(f"fact: {fact!r} is not known for {self.key!r}; known are {sorted(self.facts)}")
        return self.facts[fact].value

    def get(self, fact: str, default=None):
        return self.facts[fact].value if fact in self.facts else default

    @property
    def name(self) -> str:
        return str(self["name"])

    @property
    def target(self) -> Target:
        return target_of(str(self["target"]))


def _number(text: str) -> float | int | str:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


@lru_cache
def _facts() -> dict[str, dict[str, Fact]]:
    subjects: dict[str, dict[str, Fact]] = {}
    with DATA.open(newline="") as file:
        for row in csv.DictReader(file):
            fact = Fact(_number(row["value"]), row["unit"], row["mark"], row["source"], row["note"])
            subjects.setdefault(row["subject"], {})[row["fact"]] = fact
    return subjects


def targets() -> list[str]:
    """Names of the known compiler targets."""
    return [subject for subject in _facts() if subject.startswith("sm_")]


def target_of(name: str) -> Target:
    """The target called "sm_120" (also "120", "sm120", (12, 0) or a `Target`).

    Raises:
        ValueError: no such target; the message lists those that are known.
    """
    if isinstance(name, Target):
        return name
    text = f"{name[0]}{name[1]}" if isinstance(name, tuple) and len(name) == 2 else str(name)
    found = re.fullmatch(r"(?:sm_?)?(\d{2,3})a?", text)
    key = f"sm_{found.group(1)}" if found else text
    if key not in targets():
        raise ValueError(f"target: got {name!r}, accepted are {', '.join(targets())}")
    facts = _facts()[key]
    numbers = {n: facts[n].value for n in Target.__dataclass_fields__ if n not in ("name", "arch")}
    flags = {n: bool(numbers.pop(n)) for n in ("warpgroup_mma", "tensor_memory")}
    return Target(key, int(key[3:]), **numbers, **flags)


def devices() -> list[str]:
    """Keys of the known products."""
    return [subject for subject in _facts() if not subject.startswith("sm_")]


def device_of(key: str) -> Device:
    """The product with this key, such as "rtx-pro-6000" or "h200", or with this driver name.

    Raises:
        ValueError: no such product; the message lists those that are known.
    """
    if isinstance(key, Device):
        return key
    subjects = _facts()
    by_name = {str(subjects[d]["name"].value): d for d in devices()}
    found = by_name.get(key, key)
    if found not in devices():
        raise ValueError(
            f"device: got {key!r}, accepted are {', '.join(devices())}, or a driver's product name of these"
        )
    own = subjects[found]
    return Device(found, {**subjects.get(str(own["target"].value), {}), **own})


def rows(*keys: str) -> list[dict]:
    """Facts of products as rows (device, fact, value, unit, mark, source, note), for a table."""
    result = []
    for key in keys or devices():
        device = device_of(key)
        result += [{"device": device.key, "fact": n, **vars(f)} for n, f in device.facts.items()]
    return result


def present(index: int = 0) -> dict | None:
    """The NVIDIA GPU of this machine as torch describes it; None without one.

    Returns:
        name, capability ("9.0"), target, sm_count, smem_optin_bytes, l2_bytes, memory_bytes, uuid_sha256 (12
        hex digits of the hash of the GPU's UUID, so that runs on one card can be told without naming the
        machine), and key, the product's key in `data/devices.csv` or None.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(index)
    arch = f"sm_{properties.major}{properties.minor}"
    optin = getattr(properties, "shared_memory_per_block_optin", None)
    if optin is None:
        optin = target_of(arch).shared_optin
    uuid = str(getattr(properties, "uuid", "")) or properties.name
    names = {device_of(d).name: d for d in devices()}
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "target": arch,
        "sm_count": properties.multi_processor_count,
        "smem_optin_bytes": int(optin),
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
        "memory_bytes": int(properties.total_memory),
        "uuid_sha256": hashlib.sha256(uuid.encode()).hexdigest()[:12],
        "key": names.get(properties.name),
    }
