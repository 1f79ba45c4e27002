"""One abandoned version of the staged kernel, made again from the shipped one: the sum of weights as a tile.

The edit is three lines. Its point is what the assembler makes of it, so it is compiled for sm_90 beside the
shipped kernel, in a process that does not interpret.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd

from kernels.lab.compile import binaries
from kernels.lab.compile.request import python_path

EDITS = (
    (
        "total = gl.full([BLOCK_H], 0.0, gl.float32, layout=LM)",
        "total = gl.zeros([BLOCK_H, BLOCK_T], gl.float32, layout=S2)",
    ),
    (
        "total = total * rescale + gl.sum(weights, 1)",
        "total = total * rescale[:, None] + weights",
    ),
    (
        "    empty = total == 0.0\n",
        "    total = gl.sum(total, 1)\n    empty = total == 0.0\n",
    ),
)
TILE = (64, 32, 8, 1, True)
TARGET = "sm_90"
_MARK = "compiled pair: "


def edited(source: str) -> str:
    """The kernel's source with the sum of weights carried as a tile.

    Raises:
        ValueError: a line that is edited does not occur exactly once.
    """
    for old, new in EDITS:
        if source.count(old) != 1:
            raise ValueError(f"source: {old.strip()!r} occurs {source.count(old)} times, accepted is once")
        source = source.replace(old, new)
    return source


def waits(sass: str) -> int:
    """Instructions that wait for a warp group's products, in a disassembly."""
    return len(re.findall(r"\bWARPGROUP\.DEPBAR\b", sass))


def warning(log: str) -> str:
    """ptxas's remark about serialised products, with its number; "" without one."""
    found = re.search(r"\((C\d+)\)[^:]*: (wgmma\.mma_async instructions are serialized[^\n]*)", log)
    return f"{found.group(1)}: {found.group(2)}" if found else ""


def compile_pair(tile: tuple = TILE) -> pd.DataFrame:
    """Compile the shipped and the edited kernel for sm_90.

    Returns:
        version ("reduced in each tile" as shipped, "carried as a tile"), products (HGMMA in the SASS), waits,
        registers, spill_bytes, warning (ptxas's words, "" where it is content).

    Raises:
        RuntimeError: the compiler's process failed; its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "TRITON_INTERPRET": "0", "TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1",
            "TRITON_CACHE_DIR": folder, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(),
        }  # fmt: skip
        command = [sys.executable, "-m", "kernels.lab.chapters.serialised", json.dumps(tile), folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not lines:
        raise RuntimeError(f"compiling the pair ended with status {done.returncode}: {done.stderr[-600:]}")
    return pd.DataFrame(json.loads(lines[-1].removeprefix(_MARK)))


def _one(version: str, kernel, tile) -> dict:
    from kernels.lab.compile.worker import compile_spec
    from kernels.lab.devices import target_of
    from kernels.sparse_mla.signatures import signature

    spec = replace(signature("staged", tile), fn=kernel)
    _, cubin, _, log = compile_spec(spec, target_of(TARGET).arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = binaries.disassemble(Path(file.name))
        registers = binaries.resource_usage(Path(file.name))["registers"]
    return {
        "version": version,
        "products": len(re.findall(r"\bHGMMA\b", sass)),
        "waits": waits(sass),
        "registers": registers,
        "spill_bytes": sum((binaries.spills(log) or {}).values()),
        "warning": warning(log),
    }


def main(tile: tuple, folder: str) -> None:
    """Compile both versions and print their rows as JSON."""
    from kernels.sparse_mla import staged
    from kernels.sparse_mla.tiles import Tile

    path = Path(folder) / "edited_staged.py"
    path.write_text(edited(Path(staged.__file__).read_text(encoding="utf-8")), encoding="utf-8")
    description = importlib.util.spec_from_file_location("edited_staged", path)
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    versions = (
        ("reduced in each tile", staged.staged_kernel),
        ("carried as a tile", module.staged_kernel),
    )
    print(_MARK + json.dumps([_one(name, kernel, Tile(*tile)) for name, kernel in versions]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
