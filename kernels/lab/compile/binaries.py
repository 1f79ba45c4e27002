"""Runs NVIDIA's command-line tools, which come inside the Triton package."""

import re
import subprocess
from functools import lru_cache
from pathlib import Path


@lru_cache
def tool(name: str) -> str:
    """Path of "nvdisasm" or "cuobjdump" in the installed Triton."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise FileNotFoundError(
            f"{name} is not in the installed Triton ({path}); install the pinned Triton wheel"
        )
    return str(path)


# nvdisasm 12 ends an sm_120 line with scheduling hints, such as `&wr=0x0 ?trans1;`
_HINTS = re.compile(r"\s+(?:[&?][^\s;]+\s*)+;?\s*$")


def without_hints(line: str) -> str:
    """A line of SASS as every version prints it: the instruction, and a semicolon."""
    return _HINTS.sub(" ;", line)


def disassemble(cubin: Path) -> str:
    """SASS text of a cubin."""
    text = subprocess.run(
        [tool("nvdisasm"), "-c", str(cubin)], check=True, capture_output=True, text=True
    ).stdout
    return "\n".join(map(without_hints, text.split("\n")))


def resource_usage(cubin: Path) -> dict[str, int]:
    """Registers and stack bytes a thread, from `cuobjdump -res-usage`."""
    text = subprocess.run(
        [tool("cuobjdump"), "-res-usage", str(cubin)], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    if not found:
        raise RuntimeError(f"cuobjdump printed no resource usage: {text[-300:]!r}")
    registers, stack, _, local = map(int, found.groups())
    return {"registers": registers, "stack_bytes": stack + local}


def spills(ptxas_log: str) -> dict[str, int] | None:
    """Spilled bytes a thread from the log of `ptxas -v`, summed over functions; None without such a log."""
    found = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", ptxas_log)
    if not found:
        return None
    return {
        "spill_store_bytes": sum(int(s) for s, _ in found),
        "spill_load_bytes": sum(int(load) for _, load in found),
    }


def threads_per_block(ptx: str) -> int | None:
    """Threads a block from the PTX's `.reqntid` or `.maxntid`; warp-specialised kernels have extra warps."""
    found = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", ptx)
    return int(found.group(1)) if found else None
