"""Spares work between configurations that Triton's own passes make equal.

A sweep asks for the same tile at several pipeline depths. A loop that cannot be pipelined comes out of Triton's
passes as the same text each time, and from there on LLVM, ptxas and the disassembler, most of the time, would do
the same again. So machine code is remembered under that text, in a folder that a pool's processes share.
"""

import hashlib
import os
import pickle
from pathlib import Path

# What the passes behind Triton's own do not look at
NOT_SEEN = ("num_stages",)


class _Known(Exception):
    """Raised in the place of a pass: what it and those after it would make is known."""

    def __init__(self, value):
        super().__init__()
        self.value = value


def digest(*parts) -> str:
    """A name for a combination of texts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def remembered(folder: str | Path, key: str, make):
    """What `make()` returned for this key, in this process or in another one."""
    found = _read(folder, key)
    return _write(folder, key, make()) if found is None else found


def _read(folder, key):
    try:
        return pickle.loads((Path(folder) / key).read_bytes())
    except FileNotFoundError:
        return None


def _write(folder, key, value):
    part = Path(folder) / f"{key}.{os.getpid()}"
    part.write_bytes(pickle.dumps(value))
    part.replace(Path(folder) / key)
    return value


def compile_once(folder: str | Path, identity: str, compile_all):
    """`compile_all()`, or what it returned where Triton's passes ended with the same text before.

    Args:
        identity: what the text does not show: the source that its line numbers refer to, and the compiler.
        compile_all: calls `triton.compile` once and returns what is to be remembered.
    """
    from triton import knobs

    keys = []

    def inspect(backend=None, stages=None, options=None, language=None, capability=None):
        if backend is None:
            return "", ""  # Triton asks for the hook's part of its own cache's key
        after_passes = stages["llir"]
        seen = sorted((name, str(value)) for name, value in vars(options).items() if name not in NOT_SEEN)

        def stop_if_known(module, metadata):
            keys.append(digest(identity, capability, seen, module))
            found = _read(folder, keys[-1])
            if found is not None:
                raise _Known(found)
            return after_passes(module, metadata)

        stages["llir"] = stop_if_known

    earlier = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = inspect
    try:
        value = compile_all()
    except _Known as known:
        return known.value
    finally:
        knobs.runtime.add_stages_inspection_hook = earlier
    return _write(folder, keys[-1], value)
