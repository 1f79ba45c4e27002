"""Threads that hold copies of one sum hold the same bits: no copy keeps a product of its own unrounded."""

import json
import os
import re
import subprocess
import sys

import pytest

# A kernel decorated for the interpreter cannot be compiled: compile in another process.
PROGRAM = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.sparse_mla import plan, signatures

built = {}
for arch, device in ((120, plan.RTX_PRO_6000),):
    for impl in ("serial", "simt", "mma", "split_k", "combine"):
        chosen = plan.plan(4, 64, 512, 128, device=device, impl="split_k" if impl == "combine" else impl)
        spec = signatures.signature(impl, chosen.tile, has_length=True, extra_topk=128)
        source = ASTSource(spec.fn, spec.signature, spec.constexprs, spec.attrs)
        options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages}
        built[f"{impl} sm_{arch}"] = triton.compile(
            source, target=GPUTarget("cuda", arch, 32), options=options
        ).asm["ptx"]
print(json.dumps(built))
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, str]:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def uneven_sums(ptx: str) -> int:
    """Fused multiply-adds whose addend another thread sent: `x * w` here, unrounded, and its neighbour's, rounded."""
    received = set(re.findall(r"shfl\.sync\.bfly\.b32\s+(%\w+)", ptx))
    fused = re.findall(r"fma\.rn\.f32\s+%\w+, %\w+, %\w+, (%\w+);", ptx)
    return sum(addend in received for addend in fused)


def test_copies_of_a_sum_are_equal(compiled):
    assert len(compiled) == 5
    assert any("shfl.sync.bfly" in ptx for ptx in compiled.values())
    assert {name: uneven_sums(ptx) for name, ptx in compiled.items() if uneven_sums(ptx)} == {}
