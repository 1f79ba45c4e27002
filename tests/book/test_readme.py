"""The lines that the README shows to an engine run as they stand."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def test_the_engine_example_runs():
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["out"].shape == (2, 8, 512) and bool(torch.isfinite(names["out"]).all())
    assert names["lse"].shape == (2, 8) and bool(torch.isfinite(names["lse"]).all())
