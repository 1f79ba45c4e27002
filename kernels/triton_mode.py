"""Decides, before any kernel is decorated, whether Triton compiles for a GPU or interprets on the CPU.

Triton reads `TRITON_INTERPRET` when a function is decorated. A kernel decorated under the interpreter can
never be compiled in that process, and the other way round: the choice is made once, here.
"""

import os
import sys

_VARIABLE = "TRITON_INTERPRET"
_DECORATED = ("kernels.sparse_mla._tile", "kernels.indexer.paged")


def interpreted() -> bool:
    """True when kernels decorated from now on run in Triton's interpreter."""
    return os.environ.get(_VARIABLE, "0").lower() in ("1", "true", "on", "yes", "y")


def choose(device: str = "auto") -> str:
    """Resolve `device` to "cpu" or "cuda" and set Triton's mode to match.

    Args:
        device: "auto" (a GPU if there is one), "cpu" or "cuda".

    Raises:
        ValueError: `device` is none of the three.
        RuntimeError: "cuda" without a GPU, or kernels were already imported in the other mode.
    """
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device: got {device!r}, accepted are 'auto', 'cpu' and 'cuda'")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise RuntimeError("device: 'cuda' was asked for, but torch sees no NVIDIA GPU; use 'cpu' or 'auto'")
    chosen = device if device != "auto" else ("cuda" if available else "cpu")
    wanted = chosen == "cpu"
    if wanted != interpreted():
        loaded = [name for name in _DECORATED if name in sys.modules]
        if loaded:
            raise RuntimeError(
                f"device: {chosen!r} needs {_VARIABLE}={int(wanted)}, but {loaded[0]} is already imported in the "
                "other mode; restart Python (or the notebook's kernel) and choose the device first"
            )
        os.environ[_VARIABLE] = str(int(wanted))
    return chosen


def ensure() -> None:
    """Interpret on a machine without a GPU, unless the caller has set `TRITON_INTERPRET` either way."""
    if _VARIABLE not in os.environ:
        import torch

        if not torch.cuda.is_available():
            os.environ[_VARIABLE] = "1"
    if interpreted():
        from kernels import interpreter

        interpreter.spare()
