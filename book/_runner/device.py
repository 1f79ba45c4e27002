"""Which device the chapters run on, and the versions that shape their results."""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from .book import BookError

SHAPING_PACKAGES = ("torch", "triton", "numpy", "pandas", "matplotlib", "papermill", "ipykernel")

PROBE = """
import json, torch
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    capability = f"{p.major}.{p.minor}"
    print(json.dumps({"kind": "cuda", "name": p.name, "capability": capability, "cuda": torch.version.cuda}))
else:
    print("null")
"""


def resolve(requested: str) -> dict:
    """Resolve auto, cpu or cuda to {kind, name, capability}.

    Raises BookError when cuda is asked for and PyTorch sees none.
    """
    cuda = None if requested == "cpu" else _probe_cuda(certainly=requested == "cuda")
    if cuda is None and requested == "cuda":
        raise BookError("--device cuda: PyTorch sees no CUDA device here; --device accepts auto, cpu or cuda")
    return cuda or {"kind": "cpu", "name": platform.machine(), "capability": ""}


def versions() -> dict:
    """Versions of Python and of the packages that shape a chapter's result; absent ones are left out."""
    found = {"python": platform.python_version()}
    for package in SHAPING_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _probe_cuda(certainly: bool) -> dict | None:
    """Ask PyTorch in another process; importing it takes seconds, so only where a driver's traces are."""
    traces = any(Path("/dev").glob("nvidia*")) or any(Path("/dev").glob("nvhost*"))
    if not (certainly or traces or Path("/dev/dxg").exists() or shutil.which("nvidia-smi")):
        return None
    answer = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=os.environ)
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:] or ["no message"]
        raise BookError(f"PyTorch could not be asked for a CUDA device ({sys.executable}): {last[0]}")
    return json.loads(answer.stdout.strip().splitlines()[-1])
