"""Every kernel, at the tables' tiles, is legal on sm_120 and feeds the tensor cores by 16-byte copies."""

import json
import os
import subprocess
import sys

import pytest

SHARED_LIMIT = 101_376
# A kernel decorated for the interpreter cannot be compiled: compile in another process.
PROGRAM = """
import json, re, subprocess, tempfile
from pathlib import Path
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.indexer import plan, signatures

tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
rows = []
for device, arch in (("sm120", 120), ("sm90", 90)):
    for kernel in signatures.KERNELS:
        logits = kernel in ("paged", "fill_tail")
        tile = (plan.LOGITS_TILES if logits else plan.TOPK_TILES)[device]
        for dtype in (torch.float8_e4m3fn, torch.bfloat16) if kernel == "paged" else (torch.float8_e4m3fn,):
            spec = signatures.signature(kernel, tile, query_dtype=dtype)
            built = triton.compile(
                ASTSource(spec.fn, spec.signature, spec.constexprs, spec.attrs),
                target=GPUTarget("cuda", arch, 32),
                options={"num_warps": spec.num_warps, "num_stages": spec.num_stages},
            )
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(built.asm["cubin"])
                file.flush()
                listing = dict(capture_output=True, text=True)
                usage = subprocess.run([tools / "cuobjdump", "-res-usage", file.name], **listing)
                sass = subprocess.run([tools / "nvdisasm", file.name], **listing)
            rows.append({
                "kernel": kernel, "arch": arch, "dtype": str(dtype), "shared": built.metadata.shared,
                "stack": int(re.search(r"STACK:(\\d+)", usage.stdout)[1]),
                **{op: len(re.findall(op, sass.stdout)) for op in
                   ("QMMA", "QGMMA", "HMMA", "HGMMA", "LDGSTS.E.BYPASS.128", "LDG.E.128")},
            })
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def compiled():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_shared_memory_and_spills(compiled):
    assert len(compiled) == 10
    for row in compiled:
        assert row["shared"] <= SHARED_LIMIT, row
        if row["arch"] == 120:
            assert row["stack"] == 0, row


def test_fp8_goes_to_the_tensor_cores_as_it_is(compiled):
    paged = {(row["arch"], row["dtype"]): row for row in compiled if row["kernel"] == "paged"}
    for arch, instruction in ((120, "QMMA"), (90, "QGMMA")):
        row = paged[arch, "torch.float8_e4m3fn"]
        assert row[instruction] and not row["HMMA"] and not row["HGMMA"], row
        assert row["LDGSTS.E.BYPASS.128"] >= 8, row
    for arch, instruction in ((120, "HMMA"), (90, "HGMMA")):
        assert paged[arch, "torch.bfloat16"][instruction]


def test_whole_chunks_load_16_bytes(compiled):
    for row in compiled:
        if row["kernel"].startswith("radix"):
            assert row["LDG.E.128"], row
