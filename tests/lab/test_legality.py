"""What makes a kernel illegal, and that no kernel which the planners can launch on sm_120 is."""

import importlib.util

import pytest

from kernels.lab import compile as lab
from kernels.lab.compile.plans import OPERATORS, every_configuration


def _legality(op: str, thorough: bool) -> dict[str, list[str]]:
    results = lab.compile_many(every_configuration("sm_120", [op], thorough))
    names = [f"{r.impl} {r.tile} {r.options}" for r in results]
    return {name: lab.legal(r) for name, r in zip(names, results, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_every_configuration_is_legal_on_sm_120(op):
    for module in ("plan", "signatures"):
        if importlib.util.find_spec(f"kernels.{op}.{module}") is None:
            pytest.skip(f"kernels.{op}.{module} does not exist")
    verdicts = _legality(op, thorough=False)
    assert verdicts
    assert {name: reasons for name, reasons in verdicts.items() if reasons} == {}
