"""The identity of the code that was timed: hash of the kernel sources, and git's view of them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from kernels.lab.records.place import root

TIMED_PACKAGES = ("sparse_mla", "indexer", "decode_step")


def kernels_sha256(base: Path | None = None) -> str:
    """SHA-256 (hex) over name and content of every .py file of the timed packages, in sorted order.

    base: the folder that holds them, `kernels` by default.
    """
    base = base or root() / "kernels"
    digest = hashlib.sha256()
    for package in TIMED_PACKAGES:
        for path in sorted((base / package).rglob("*.py")):
            digest.update(path.relative_to(base).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
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
    """Whether tracked files under kernels/ differ from the commit; None where git cannot say."""
    status = _git("status", "--porcelain", "--untracked-files=no", "--", "kernels")
    return None if status is None else bool(status)
