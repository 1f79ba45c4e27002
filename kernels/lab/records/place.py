"""Where things lie in the repository. Everything is found from the package, so the working directory is
free.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import kernels


def root() -> Path:
    """The repository's root: the folder that holds `kernels`."""
    return Path(kernels.__file__).resolve().parents[1]


def build() -> Path:
    """The build folder; BOOK_BUILD_DIR names another one than `_build`."""
    return Path(os.environ.get("BOOK_BUILD_DIR") or root() / "_build")


def build_runs() -> Path:
    """Where a GPU run is written while it is measured."""
    return build() / "runs"


def recorded_runs() -> Path:
    """Where finished runs are kept: data/runs/<device>/<run_id>/."""
    return root() / "data" / "runs"


def chapter_notes() -> Path:
    """Where each executed chapter leaves its JSON for the status page."""
    return build() / "chapters"


def device_folder(device_name: str) -> str:
    """'NVIDIA H200' -> 'nvidia-h200'."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def write_text(path: Path, text: str) -> None:
    """Write under another name and rename, so that a reader never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
