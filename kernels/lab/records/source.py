"""The identity of the code that was timed: hash of the kernel sources, and git's view of them."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

from kernels.lab.records.place import root

TIMED_PACKAGES = ("sparse_mla", "indexer", "decode_step")
TIMED_FILES = (".py", ".json")  # the tuned table decides what is launched
# Constants that kernels take from a module of the host's, which may change without them
CONSTANTS = {"sparse_mla/tiles.py": ("RELEASES",)}


def kernels_sha256(base: Path | None = None) -> str:
    """SHA-256 (hex) over name and content of every source and table of the timed packages, in sorted order.

    base: the folder that holds them, `kernels` by default.
    """
    return _digest(_read(base))


def kernels_files(base: Path | None = None) -> dict[str, str]:
    """Path below `kernels` -> short SHA-256, for the files of `kernels_sha256` and the constants in `CONSTANTS`.

    A constant's key is 'path:NAME'. base: as in `kernels_sha256`.
    """
    return _short(_read(base))


def _read(base: Path | None) -> dict[str, bytes]:
    base = base or root() / "kernels"
    return {
        path.relative_to(base).as_posix(): path.read_bytes()
        for package in TIMED_PACKAGES
        for path in (base / package).rglob("*")
        if path.suffix in TIMED_FILES
    }


def _short(files: dict[str, bytes]) -> dict[str, str]:
    found = dict(files)
    for path, names in CONSTANTS.items():
        for name in names if path in files else ():
            found[f"{path}:{name}"] = _constant(files[path], name)
    return {name: hashlib.sha256(found[name]).hexdigest()[:12] for name in sorted(found)}


def _constant(text: bytes, name: str) -> bytes:
    """The value that a module gives a name at its top level; the whole text where that is not one literal."""
    values = [
        statement.value
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
    ]
    try:
        (value,) = values
        return repr(ast.literal_eval(value)).encode()
    except ValueError:
        return text


def _digest(files: dict[str, bytes]) -> str:
    """Package by package, files in the order of their paths."""
    digest = hashlib.sha256()
    for package in TIMED_PACKAGES:
        for name in sorted((n for n in files if n.startswith(f"{package}/")), key=lambda n: n.split("/")):
            digest.update(name.encode() + b"\0")
            digest.update(files[name] + b"\0")
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root(), capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_commit() -> str | None:
    """The short commit hash, or None where the sources are no git checkout.

    The environment variable KERNELS_COMMIT goes before git: on a machine that got a copy of the files, a checkout
    may be an older one.
    """
    return os.environ.get("KERNELS_COMMIT") or _git("rev-parse", "--short=7", "HEAD") or None


def git_dirty() -> bool | None:
    """Whether tracked files under kernels/ differ from the commit; None where git cannot say.

    It cannot where KERNELS_COMMIT names the commit: the checkout there, if any, is of another one.
    """
    if os.environ.get("KERNELS_COMMIT"):
        return None
    status = _git("status", "--porcelain", "--untracked-files=no", "--", "kernels")
    return None if status is None else bool(status)


def kernels_sha256_at(commit: str) -> str | None:
    """`kernels_sha256` of the files as a commit has them; None where git does not know the commit."""
    files = read_at(commit)
    return files and _digest(files)


def kernels_files_at(commit: str, sha256: str | None = None) -> dict[str, str] | None:
    """`kernels_files` as a commit has them; None where git does not know the commit.

    sha256: a run's `kernels_sha256`; None, too, where the commit's files are not those of the run. The hashes of the
    oldest runs are over the sources alone.
    """
    files = read_at(commit)
    if not files:
        return None
    sources = {name: text for name, text in files.items() if name.endswith(".py")}
    return _short(files) if sha256 in (None, _digest(files), _digest(sources)) else None


def read_at(commit: str) -> dict[str, bytes] | None:
    """The timed packages' files, path below `kernels` -> content, as a commit has them; None without the commit."""
    packages = [f"kernels/{package}" for package in TIMED_PACKAGES]
    try:
        done = subprocess.run(
            ["git", "archive", "--format=tar", commit, *packages], cwd=root(), capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return {
            member.name.removeprefix("kernels/"): archive.extractfile(member).read()
            for member in archive
            if member.isfile() and member.name.endswith(TIMED_FILES)
        }
