"""Fixtures of the runner's tests, and the real book's rendering, which two modules share."""

import fcntl
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.book.tiny import TinyBook

ROOT = Path(__file__).resolve().parents[2]
# On a GPU machine the measured site is left alone.
BUILD = ROOT / "_build" / ("cpu" if any(Path("/dev").glob("nvidia*")) else "")


@pytest.fixture
def tiny_book(tmp_path) -> TinyBook:
    return TinyBook(tmp_path)


@cache
def render_the_book() -> subprocess.CompletedProcess:
    """Run every chapter in `quick` on the CPU and render the site; one process at a time, a repeat is short."""
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "book" / "run.py"), "--device", "cpu", "--build", str(BUILD)]
    with open(BUILD / ".tests-lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return subprocess.run(command, capture_output=True, text=True)
