"""The interpreter without its waste computes and refuses what it did."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAD = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import inspect, torch, triton, triton.language as tl
from triton.runtime import interpreter
from kernels.interpreter import spare
"""


def _run(tmp_path, program: str) -> None:
    """Run a program whose kernels Triton can read the source of, in a process without the other tests' kernels."""
    script = tmp_path / "interpreted.py"
    script.write_text(HEAD + program)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


REPLACED = """
spare()
patched = []
real = interpreter._patch_lang
interpreter._patch_lang = lambda fn: patched.append(fn.__name__) or real(fn)

@triton.jit
def twice(x):
    return x + x

@triton.jit
def kernel(ptr):
    i = tl.arange(0, 4)
    tl.store(ptr + i, twice(twice(i)) + tl.sum(i) + tl.max(i, 0))

@triton.jit
def wrong(ptr):
    tl.store(ptr, twice(tl.nothing))

out = torch.zeros(4, dtype=torch.int32)
kernel[(1,)](out)
assert out.tolist() == [9, 13, 17, 21]
# Once for the kernel, and once for the library's functions, which see more of Triton
assert patched == ["kernel", "sum"], patched
kernel[(1,)](out.zero_())
assert out.tolist() == [9, 13, 17, 21]
assert patched == ["kernel", "sum", "kernel"], patched
try:
    wrong[(1,)](out)
except Exception as error:
    assert type(error).__name__ == "InterpreterError", error
else:
    raise AssertionError("no error")
assert tl.core.is_builtin(tl.load), "everything is put back behind a kernel"
call = interpreter.InterpretedFunction.__call__
spare()
assert interpreter.InterpretedFunction.__call__ is call
"""

SAME = """
@triton.jit
def kernel(ints, bytes_, floats, block: tl.constexpr):
    i = tl.arange(0, block)
    x = tl.load(ints + i)
    narrow = x.to(tl.int8)
    wide = (x * x - x).to(tl.int64) + i
    rows = tl.reshape(x, (4, block // 4))
    total = tl.sum(rows, 0)[None, :] + rows
    tl.store(ints + i, tl.reshape(total, (block,)) + (wide >> 3).to(tl.int32) + tl.cumsum(i, 0))
    tl.store(bytes_ + i, (narrow + narrow).to(tl.uint8))
    f = tl.load(floats + i)
    half = f.to(tl.bfloat16)
    tl.store(floats + i, tl.where(i < 3, tl.exp2(-tl.abs(f)), half.to(tl.float32) * 2 + tl.max(f, 0)))

def run():
    ints = (torch.arange(16) * 123_456_789 % 2**32 - 2**31).int()  # the products and sums overflow
    bytes_, floats = torch.zeros(16, dtype=torch.uint8), torch.linspace(-3, 3, 16)
    kernel[(1,)](ints, bytes_, floats, 16)
    return ints, bytes_, floats

before = run()
spare()
after = run()
assert all(torch.equal(a, b) for a, b in zip(before, after))
assert len(set(before[0].tolist())) > 8 and before[1].any()

assert not interpreter.interpreter_semantic.builder.options.sanitize_overflow
numbers = [getattr(tl, n) for n in dir(tl) if isinstance(getattr(tl, n), tl.dtype) and n != "void"]
assert len(numbers) > 15
original = interpreter._get_np_dtype.__wrapped__
for number in numbers + [tl.pointer_type(n) for n in numbers]:
    for kind in (number, tl.block_type(number, [4])):
        for _ in range(2):
            assert interpreter._get_np_dtype(kind) == original(kind), kind
"""

CHECKED = """
import dataclasses
builder = interpreter.interpreter_builder
builder.options = dataclasses.replace(builder.options, debug=True)
spare()

@triton.jit
def kernel(ptr):
    tl.store(ptr, tl.load(ptr) + 1)

kernel[(1,)](torch.tensor([2**31 - 2], dtype=torch.int32))
try:
    kernel[(1,)](torch.tensor([2**31 - 1], dtype=torch.int32))
except Exception as error:
    assert "overflow" in str(error), error
else:
    raise AssertionError("no error")
"""


@pytest.mark.parametrize("program", [REPLACED, SAME, CHECKED], ids=["replaced once", "same results", "debug"])
def test_what_is_spared_is_waste(tmp_path, program):
    _run(tmp_path, program)


def test_an_interpreter_that_looks_different_is_left_alone(monkeypatch):
    from triton.runtime import interpreter

    from kernels.interpreter import spare

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", object())
    before = vars(interpreter).copy()
    monkeypatch.delattr(interpreter, "_patch_lang")
    spare()
    assert {k: v for k, v in before.items() if k != "_patch_lang"} == vars(interpreter)
    assert not inspect.isfunction(interpreter.InterpretedFunction.__call__)
