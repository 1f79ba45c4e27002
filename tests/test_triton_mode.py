"""Compiled or interpreted: decided once, before any kernel is decorated."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import triton_mode

ROOT = Path(__file__).parents[1]
GPU = torch.cuda.is_available()
PACKAGES = ("sparse_mla", "indexer")


# Torch's import, which kernels wait for, is most of what a fresh process does: once for all of them
FRESH = """
import contextlib, io, json, os, sys
import torch
for program, interpret in json.load(sys.stdin):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.environ.pop("TRITON_INTERPRET", None)
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret
        said = io.StringIO()
        try:
            assert "triton" not in sys.modules
            with contextlib.redirect_stdout(said):
                exec(program, {})
            answer = said.getvalue().strip()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    print(json.dumps(open(reader).read()), flush=True)
    os.wait()
"""


def python(*asked: tuple[str, str | None]) -> list[str]:
    """What processes without Triton print or raise, for each program and its TRITON_INTERPRET."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=ROOT, input=json.dumps(asked), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "value,expected",
    [("1", True), ("true", True), ("ON", True), ("yes", True), ("0", False), ("false", False), ("", False)],
)
def test_interpreted_reads_what_triton_reads(value, expected, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert triton_mode.interpreted() is expected


def test_without_the_variable_kernels_are_compiled(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert triton_mode.interpreted() is False


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "", None])
def test_an_unknown_device_is_refused(device):
    with pytest.raises(ValueError, match="^device: got .*, accepted are 'auto', 'cpu' and 'cuda'"):
        triton_mode.choose(device)


def test_cpu_sets_the_variable_and_cuda_clears_it(monkeypatch):
    for name in triton_mode._DECORATED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert triton_mode.choose("cpu") == "cpu" and os.environ["TRITON_INTERPRET"] == "1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert triton_mode.choose("auto") == "cuda" and os.environ["TRITON_INTERPRET"] == "0"
    assert triton_mode.choose("cuda") == "cuda"
    assert triton_mode.choose("cpu") == "cpu" and os.environ["TRITON_INTERPRET"] == "1"


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="^device: 'cuda' was asked for, but torch sees no NVIDIA GPU"):
        triton_mode.choose("cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_mode.choose("auto") == "cpu"


def test_kernels_of_the_other_mode_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels.indexer.paged", sys)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match="is already imported in the other mode; restart Python"):
        triton_mode.choose("cpu")
    assert os.environ["TRITON_INTERPRET"] == "0"


IMPORT = "import kernels.{}; from kernels import triton_mode; print(triton_mode.interpreted())"


def test_importing_kernels_interprets_where_there_is_no_gpu():
    cases = [(IMPORT.format(package), value) for package in PACKAGES for value in (None, "0", "1")]
    # The caller's word counts in either direction: a CPU machine compiles for another target
    assert python(*cases) == [str(not GPU), "False", "True"] * len(PACKAGES)


def test_choosing_after_the_import():
    program = "import kernels.sparse_mla; from kernels import triton_mode; print(triton_mode.choose('cpu'))"
    chosen, refused = python((program, "1"), (program, "0"))
    assert chosen == "cpu"
    assert refused.startswith("RuntimeError: device: 'cpu' needs TRITON_INTERPRET=1, but kernels.")


def test_the_package_is_light():
    program = (
        "import sys, kernels; print('torch' in sys.modules, 'triton' in sys.modules, kernels.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("False False 0."), done.stderr
