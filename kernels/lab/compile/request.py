"""What is asked of the compiler: checked, and turned into plain data that a worker process understands."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from dataclasses import asdict, dataclass, is_dataclass
from functools import lru_cache
from pathlib import Path

from kernels.lab.devices import target_of

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Request:
    """One kernel to compile.

    Attributes:
        op: "sparse_mla", "indexer", or the dotted name of a module that has `signature(impl, tile,
            **options)`.
        impl: rung of the operator's ladder.
        tile: block sizes, num_warps and num_stages by name.
        target: "sm_120", "sm_90" ...
        options: further keyword arguments of `signature`.
    """

    op: str
    impl: str
    tile: dict
    target: str = "sm_120"
    options: dict | None = None

    @property
    def module(self) -> str:
        return self.op if "." in self.op else f"kernels.{self.op}.signatures"

    def as_json(self) -> dict:
        return asdict(self) | {"module": self.module, "options": dict(self.options or {})}

    def key(self, sources: str) -> str:
        """Hash of the request, of the sources (`source_hash`) and of the tools."""
        parts = [json.dumps(self.as_json(), sort_keys=True), sources, tools_hash()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _is_power_of_two(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and value & (value - 1) == 0


def make_request(op: str, impl: str, tile, target: str = "sm_120", **options) -> Request:
    """Check the arguments of `compile_kernel`.

    Args:
        tile: a mapping or a dataclass such as `kernels.sparse_mla.plan.Tile`.

    Raises:
        ValueError: `target` is unknown, a block size or num_warps is no power of two, or an option is no
            plain value.
        TypeError: `tile` is neither mapping nor dataclass.
    """
    target = target_of(target).name
    if is_dataclass(tile) and not isinstance(tile, type):
        tile = asdict(tile)
    if not hasattr(tile, "items"):
        raise TypeError(
            f"tile: got {type(tile).__name__}, accepted are a mapping and a dataclass of block sizes"
        )
    tile = dict(tile)
    for name, value in tile.items():
        if name == "num_stages":
            if not isinstance(value, int) or not 1 <= value <= 8:
                raise ValueError(f"tile: num_stages={value!r}, accepted are the integers 1 to 8")
        elif (name.startswith("block") or name == "num_warps") and not _is_power_of_two(value):
            near = 1 << max(int(value) - 1, 0).bit_length() if isinstance(value, (int, float)) else 16
            raise ValueError(
                f"tile: {name}={value!r} is no power of two, which Triton's blocks must be; "
                f"try {near} or {max(near // 2, 1)}"
            )
    producers = tile.get("producer_warps", 0)
    if producers != 0 and not _is_power_of_two(producers):
        raise ValueError(f"tile: producer_warps={producers!r}, accepted are 0 and powers of two")
    if tile.get("num_warps", 4) + producers > 32:
        raise ValueError(
            f"tile: {tile.get('num_warps', 4)} + {producers} warps, accepted are up to 32 in a block"
        )
    try:
        json.dumps(options)
    except TypeError as error:
        raise ValueError(
            f"options: {options!r} must be numbers, strings, booleans or None ({error})"
        ) from None
    return Request(op, str(impl), tile, target, options)


def _files_hash(files) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def source_hash(module: str) -> str:
    """Hash of the files that `module` may be made of: `kernels` without the lab, and its own folder."""
    root = REPOSITORY / "kernels"
    files = {p for p in root.rglob("*.py") if (root / "lab") not in p.parents}
    if not module.startswith("kernels.") or module.startswith("kernels.lab."):
        files |= set(_folder_of(module).glob("*.py"))
    return _files_hash(files)


def _folder_of(module: str) -> Path:
    head, *rest = module.split(".")
    spec = importlib.util.find_spec(head)
    if spec is None:
        raise ValueError(
            f"op: no module {module!r} on the Python path; accepted are operators and dotted module names"
        )
    bases = [Path(p) for p in spec.submodule_search_locations or [Path(spec.origin).parent]]
    for base in bases:
        folder = base.joinpath(*rest[:-1])
        if folder.is_dir():
            return folder
    raise ValueError(f"op: module {module!r} is in none of {[str(b) for b in bases]}")


@lru_cache
def tools_hash() -> str:
    """Hash of what turns a kernel into counts: Triton's version, and this package's own code."""
    own = _files_hash(Path(__file__).parent.glob("*.py"))
    return f"triton {importlib.metadata.version('triton')} reader {own}"


def cache_root() -> Path:
    """Where compiled kernels are kept: `KERNELS_COMPILE_CACHE`, or `_build/compile-cache`."""
    return Path(os.environ.get("KERNELS_COMPILE_CACHE") or REPOSITORY / "_build" / "compile-cache").resolve()


def python_path() -> str:
    """This process's import path, for a worker that must find the same modules."""
    return os.pathsep.join(dict.fromkeys([str(REPOSITORY), *(p or os.getcwd() for p in sys.path)]))
