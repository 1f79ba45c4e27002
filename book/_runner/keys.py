"""Cache keys: what a chapter's result depends on.

A chapter may read any kernel and any record, and starts compilers in other processes, so its dependencies
cannot be observed soundly: every file of kernels/ and data/ counts.
"""

import hashlib
import json
from pathlib import Path

IGNORED_PARTS = {"__pycache__", ".ipynb_checkpoints"}


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sha256_tree(*folders: Path) -> str:
    """Hex digest of names and bytes of all files below the folders, but for bytecode and hidden files."""
    digest = hashlib.sha256()
    for folder in folders:
        digest.update(f"{folder.name}/\n".encode())
        for path in files(folder):
            digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def files(folder: Path) -> list[Path]:
    """The files below a folder that count, sorted."""
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part in IGNORED_PARTS for part in parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            found.append(path)
    return found


def digest(value) -> str:
    """Hex digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def shared_inputs(root: Path) -> dict:
    """What every chapter depends on, each hashed once."""
    runner = Path(__file__).resolve().parent
    executing = [runner / name for name in ("worker.py", "engine.py", "kernelspec.py", "keys.py")]
    return {
        "kernels": sha256_tree(root / "kernels"),
        "data": sha256_tree(root / "data"),
        "runner": digest([sha256_file(path) for path in executing]),
    }


def chapter_key(source_sha256: str, inputs: dict, parameters: dict, device: dict, versions: dict) -> str:
    """The key under which an executed chapter is reused."""
    return digest([source_sha256, inputs, parameters, device, versions])
