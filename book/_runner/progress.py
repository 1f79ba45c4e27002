"""What the runner says while it works: plain lines, so that a log file reads like a terminal."""

import threading
import time
from pathlib import Path


class Progress:
    """Prints lines with the time since the start; safe to call from several threads."""

    def __init__(self, quiet_seconds: float = 1.0):
        self.started = time.monotonic()
        self.quiet_seconds = quiet_seconds
        self._lock = threading.Lock()
        self._last = {}

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str = "") -> None:
        with self._lock:
            print(text, flush=True)

    def chapter(self, name: str, text: str) -> None:
        """One line about a chapter."""
        self._last[name] = time.monotonic()
        self.say(f"[{self.elapsed():6.1f} s] {name:<24} {text}")

    def cell(self, name: str, event: dict) -> None:
        """A cell begins. Cells that follow each other quickly share a line."""
        first_or_last = event["cell"] in (1, event["of"])
        if first_or_last or time.monotonic() - self._last.get(name, 0.0) >= self.quiet_seconds:
            self.chapter(name, f"cell {event['cell']} of {event['of']}")


def describe(error: dict) -> str:
    """A failure in one line: cell and cause."""
    place = f"cell {error['cell']}" if error["cell"] else "before its first cell"
    line = f" ({error['line']})" if error.get("line") else ""
    return f"{place}{line}: {error['cause']}"


def table(names: list[str], chapters: dict, cached: set[str], total: float) -> str:
    """The closing table: each chapter's seconds, and whether it was executed or reused."""
    rows = [("chapter", "seconds", "cells", "device", "")]
    for name in names:
        entry = chapters.get(name)
        if entry is None:
            rows.append((name, "-", "-", "-", "not run"))
            continue
        how = "reused" if name in cached else "executed"
        if entry["status"] != "ok":
            how = "FAILED"
        cells = f"{entry['executed_cells']}/{entry['cells']}"
        rows.append((name, f"{entry['seconds']:.1f}", cells, entry["device"]["name"], how))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.append(f"total {total:.1f} s")
    return "\n".join(line.rstrip() for line in lines)


def link(path: Path) -> str:
    """A path and its file:// address."""
    return f"{path}  {path.as_uri()}"
