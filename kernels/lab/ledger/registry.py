"""The checks by name. A check takes the claim and the context and returns a finding."""

from __future__ import annotations

from collections.abc import Callable

from kernels.lab.ledger.claims import Claim
from kernels.lab.ledger.context import Context
from kernels.lab.ledger.findings import Finding

Check = Callable[[Claim, Context], Finding]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its function's name without the leading underscore."""
    name = function.__name__.lstrip("_")
    if name in CHECKS:
        raise ValueError(f"check {name!r} is registered twice; names are unique")
    CHECKS[name] = function
    return function
