"""What a check may look at: other claims, constants, the campaign's card, the code, the compiler, recorded
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernels.lab.ledger import recorded
from kernels.lab.ledger.claims import DATA, Claim, load_constants

CARD = "rtx-pro-6000"


@dataclass
class Context:
    """The inputs of every check. Whatever is slow or may be missing is read when a check asks for it."""

    claims: Sequence[Claim]
    data: Path = DATA
    compile_kernels: bool = True
    _compiled: dict[tuple, Any] = field(default_factory=dict)

    def claim(self, id: str) -> Claim:
        """Another claim, by id. Raises KeyError where there is none."""
        for claim in self.claims:
            if claim.id == id:
                return claim
        raise KeyError(f"id={id!r}: no such claim in data/campaign.csv")

    def value(self, id: str) -> float:
        """Another claim's figure."""
        return self.claim(id).number

    @cached_property
    def constants(self) -> dict[str, str]:
        return load_constants(self.data / "constants.csv")

    def constant(self, name: str) -> float:
        """A constant of data/constants.csv as a number."""
        if name not in self.constants:
            raise KeyError(f"name={name!r}: no such constant in data/constants.csv")
        return float(self.constants[name])

    @cached_property
    def card(self) -> dict[str, str]:
        """The campaign's card in data/devices.csv: fact to value; empty while the file lacks it."""
        return recorded.device_facts(self.data / "devices.csv", CARD)

    def fact(self, name: str) -> float:
        """A fact of the campaign's card as a number; `target` as its compute capability."""
        if name not in self.card:
            raise KeyError(f"name={name!r}: data/devices.csv has no such fact of {CARD}")
        value = self.card[name]
        return int(value.removeprefix("sm_")) / 10 if name == "target" else float(value)

    @cached_property
    def measurements(self):
        """Every usable point of data/runs, best run first."""
        return recorded.load(self.data / "runs", "measurements")

    @cached_property
    def profile(self):
        """Every row of the decode step's profiles in data/runs, best run first."""
        return recorded.load(self.data / "runs", "profile")

    def blocks(self, batch: int) -> int:
        """Blocks of the head-shared kernel without splits."""
        return batch * int(self.constant("campaign_head_groups"))

    def splits(self, batch: int) -> int:
        """The campaign's split count, from the planner that the kernels use."""
        from kernels.sparse_mla.plan import campaign_num_splits

        groups, sms = int(self.constant("campaign_head_groups")), int(self.fact("sm_count"))
        return campaign_num_splits(batch, head_groups=groups, sm_count=sms)

    def compiled(self, impl: str, **tile: int):
        """The kernel compiled for the campaign's architecture, or None where it is not compiled here."""
        if not self.compile_kernels:
            return None
        key = (impl, *sorted(tile.items()))
        if key not in self._compiled:
            from kernels.lab.compile import compile_kernel

            self._compiled[key] = compile_kernel("sparse_mla", impl, tile, target="sm_120")
        return self._compiled[key]
