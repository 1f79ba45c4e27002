"""Other versions of the staged rung, made from the shipped sources by a few edits, and compiled side by side.

The sources of abandoned attempts are not kept. What matters in one of them is often a line or two, which an edit
brings back: the version is then compiled here and now, in a process that does not interpret.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kernels import sparse_mla
from kernels.lab.compile import binaries
from kernels.lab.compile.request import cache_root, python_path, source_hash, tools_hash
from kernels.sparse_mla.tiles import Tile

# What may be edited, each before those that import it
MODULES = ("_overlap", "_candidates", "_rows", "_result", "staged", "specialised", "few_heads")
ANYTHING = "⋯"
"""In the old text of an edit: whatever lies between."""
Edit = tuple[str, str]
Version = Mapping[str, Sequence[Edit]]
"""Edits by module of `kernels.sparse_mla`, of those in `MODULES`; empty for the shipped sources."""


@dataclass(frozen=True)
class Built:
    """A version as PTX and as machine code: its disassembly, registers a thread, spilled bytes, ptxas's log."""

    ptx: str
    sass: str
    registers: int
    spill_bytes: int
    log: str


def edited(source: str, edits: Sequence[Edit]) -> str:
    """`source` with each old text replaced by its new one; `ANYTHING` in an old text stands for any text.

    Raises:
        ValueError: an old text does not occur exactly once.
    """
    for old, new in edits:
        pattern = re.compile(".*?".join(map(re.escape, old.split(ANYTHING))), re.DOTALL)
        found = pattern.findall(source)
        if len(found) != 1:
            raise ValueError(f"source: {old.strip()!r} occurs {len(found)} times, accepted is once")
        source = source.replace(found[0], new)
    return source


def compile_versions(
    versions: Sequence[Version], tile: Tile, target: str = "sm_90", **shape: int
) -> list[Built]:
    """The rung with a tile, compiled for a target once for each of the versions.

    shape: arguments of `sparse_mla.signatures.signature`, such as extra_topk; its defaults otherwise.

    What is compiled is the module of the tile's kernel, on top of the edited helpers.

    What was compiled is kept beside the other compiled kernels, under a hash of sources, edits and tools.

    Raises:
        RuntimeError: the compiler's process failed; its last words.
    """
    kept = _place(versions, tile, target, shape)
    if kept.exists():
        return [Built(**one) for one in json.loads(kept.read_text(encoding="utf-8"))]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "TRITON_INTERPRET": "0", "TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1",
            "TRITON_CACHE_DIR": f"{folder}/cache", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(),
        }  # fmt: skip
        asked = {"versions": [dict(version) for version in versions], "tile": asdict(tile), "target": target}
        asked["shape"] = shape
        done = subprocess.run(
            [sys.executable, "-m", "kernels.lab.chapters.edited", folder],
            env=environment, input=json.dumps(asked), capture_output=True, text=True,
        )  # fmt: skip
        answer = Path(folder) / "answer.json"
        if done.returncode or not answer.exists():
            raise RuntimeError(f"compiling ended with status {done.returncode}: {done.stderr[-600:]}")
        text = answer.read_text(encoding="utf-8")
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = kept.with_name(f"{kept.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(kept)
    return [Built(**one) for one in json.loads(text)]


def _place(versions: Sequence[Version], tile: Tile, target: str, shape: Mapping[str, int]) -> Path:
    """Where the answer to these arguments is kept."""
    own = Path(__file__).read_text(encoding="utf-8")
    asked = [[dict(version) for version in versions], asdict(tile), target, dict(shape)]
    parts = [json.dumps(asked, sort_keys=True), source_hash("kernels.sparse_mla"), tools_hash(), own]
    return cache_root() / "edited" / (hashlib.sha256("\n".join(parts).encode()).hexdigest() + ".json")


def _module(path: Path, source: str):
    path.write_text(source, encoding="utf-8")
    description = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(description)
    sys.modules[path.stem] = module
    description.loader.exec_module(module)
    return module


def _kernel(version: Version, kernel: str, folder: Path, number: int):
    """A kernel by its name, from edited sources that `inspect` can find again."""
    if unknown := set(version) - set(MODULES):
        raise ValueError(f"version: got edits of {sorted(unknown)}, accepted are those of {MODULES}")
    named = {name: f"edited{name.removeprefix('_')}_{number}" for name in MODULES}
    links = "|".join(MODULES)
    for name in MODULES:
        source = (Path(sparse_mla.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        source = edited(source, version.get(name, ()))
        linked = re.sub(
            rf"from kernels\.sparse_mla\.({links}) import", lambda m: f"from {named[m[1]]} import", source
        )
        module = _module(folder / f"{named[name]}.py", linked)
        if kernel == f"{name}_kernel":
            return getattr(module, kernel)
    raise ValueError(f"tile: its kernel is {kernel}, accepted are those of {MODULES}")


def main(folder: Path) -> None:
    """Compile what standard input asks for; the answer is a file in the folder."""
    from kernels.lab.compile.worker import compile_spec
    from kernels.lab.devices import target_of
    from kernels.sparse_mla.signatures import signature

    asked = json.load(sys.stdin)
    tile, arch = Tile(**asked["tile"]), target_of(asked["target"]).arch
    answer = []
    for number, version in enumerate(asked["versions"]):
        shipped = signature("staged", tile, **asked["shape"])
        spec = replace(shipped, fn=_kernel(version, shipped.fn.__name__, folder, number))
        ptx, cubin, _, log = compile_spec(spec, arch)
        path = folder / f"{number}.cubin"
        path.write_bytes(cubin)
        spilled = sum((binaries.spills(log) or {}).values())
        registers = binaries.resource_usage(path)["registers"]
        answer.append(asdict(Built(ptx, binaries.disassemble(path), registers, spilled, log)))
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
