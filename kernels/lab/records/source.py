"""The identity of the code that was timed: hash of the kernel sources, and git's view of them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

from kernels.lab.records.place import root

TIMED_PACKAGES = ("sparse_mla", "indexer", "decode_step")
TIMED_FILES = (".py", ".json")  # the tuned table decides what is launched


def kernels_sha256(base: Path | None = None) -> str:
    """SHA-256 (hex) over name and content of every source and table of the timed packages, in sorted order.

    base: the folder that holds them, `kernels` by default.
    """
    base = base or root() / "kernels"
    files = {
        path.relative_to(base).as_posix(): path.read_bytes()
        for package in TIMED_PACKAGES
        for path in (base / package).rglob("*")
        if path.suffix in TIMED_FILES
    }
    return _digest(files)


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
        return _digest(
            {
                member.name.removeprefix("kernels/"): archive.extractfile(member).read()
                for member in archive
                if member.isfile() and member.name.endswith(TIMED_FILES)
            }
        )
