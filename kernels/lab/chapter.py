"""What the first cell of every chapter calls: it settles the device, shows the badge and hands over a `Lab`.

from kernels.lab import chapter
lab = chapter.start("01-baseline-simt", device=device, profile=profile)
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import random
import re
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from kernels import triton_mode
from kernels.lab import evidence as proof
from kernels.lab.evidence import Evidence
from kernels.lab.records import place, source

PROFILES = ("quick", "full")
SEED = 20260101


@dataclass
class Lab:
    """One chapter's hold on the instruments.

    name: the notebook's name. device: 'cpu' or 'cuda'. profile: 'quick' or 'full'. root: the repository.
    """

    name: str
    device: str
    profile: str
    root: Path
    badge: str
    device_name: str
    commit: str | None
    versions: dict[str, str]
    started: float = field(default_factory=time.perf_counter)
    used: list[dict[str, Any]] = field(default_factory=list)
    run: Any = None

    @property
    def on_gpu(self) -> bool:
        """True when this execution measures."""
        return self.device == "cuda"

    @property
    def full(self) -> bool:
        """True in the `full` profile."""
        return self.profile == "full"

    def results(self, experiment: str):
        """(DataFrame, Evidence) of a named experiment: measured now on a GPU, otherwise the newest record."""
        from kernels.lab import experiments

        frame, evidence = experiments.results(experiment, self)
        self._note(evidence, experiment)
        return frame, evidence

    def counters(self, experiment: str):
        """(DataFrame, Evidence) of hardware counters: read with ncu now on a GPU, otherwise the newest
        record.
        """
        from kernels.lab import counters

        frame, evidence = counters.results(experiment, self)
        self._note(evidence, experiment)
        return frame, evidence

    def compiled(self, target: str = "sm_120", note: str | None = None) -> Evidence:
        """Evidence for results of `kernels.lab.compile` in this execution."""
        return proof.compiled(target, note)

    def figure(self, fig, evidence: Evidence | None = None) -> None:
        """Show a figure as SVG with its evidence line, and close it."""
        import matplotlib.pyplot as plt

        from kernels.lab.figures import style

        self._note(evidence, "figure")
        style.finish(fig, evidence)
        _display(
            {"image/svg+xml": style.svg(fig), "text/plain": getattr(fig, "_evidence_line", None) or "figure"}
        )
        plt.close(fig)

    def table(
        self, df, name: str, caption: str, evidence: Evidence | None = None, formats=None, **options
    ) -> None:
        """Show a numbered table; see `kernels.lab.figures.tables.table` for the arguments."""
        from kernels.lab.figures import tables

        self._note(evidence, name)
        _display({"text/markdown": tables.table(df, name, caption, evidence, formats, **options)})

    def glue(
        self, name: str, value: Any, fmt: str = "{}", evidence: Evidence | None = None, show_kind=True
    ) -> None:
        """Store a computed number for `{glue:text}` in prose; see `kernels.lab.evidence.glue`.

        Returns nothing, so that a cell may end with it and show nothing.
        """
        self._note(evidence, name)
        proof.glue(name, value, fmt, evidence, show_kind)

    def show_source(
        self,
        function: Callable | Any,
        highlight: Iterable[str] = (),
        start: str | None = None,
        end: str | None = None,
    ) -> None:
        """Show a function's own source as a code block with its file and line numbers.

        function: a Python function, a class or a Triton kernel. highlight: pieces of text; each line that
        contains one is marked. start, end: pieces of text that bound the excerpt (both lines are shown).
        Raises ValueError when a piece occurs in no line, so that a chapter cannot drift from its kernel.
        """
        _display({"text/markdown": source_block(function, highlight, start, end)})

    def close(self) -> None:
        """Print the chapter's seconds and leave its note for the status page."""
        seconds = time.perf_counter() - self.started
        if self.run is not None:
            self.run.finish_chapter(self.name, seconds, "ok")
        note = {
            "name": self.name,
            "device": self.device,
            "device_name": self.device_name,
            "profile": self.profile,
            "seconds": round(seconds, 1),
            "finished_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": self.commit,
            "versions": self.versions,
            "run_id": self.run.run_id if self.run is not None else None,
            "evidence": self.used,
        }
        target = place.chapter_notes() / f"{self.name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(f".{os.getpid()}.part")
        draft.write_text(json.dumps(note, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(target)
        print(f"{self.name}: {seconds:.1f} s on {self.device_name}, profile {self.profile}")

    def _note(self, evidence: Evidence | None, what: str) -> None:
        if evidence is None:
            return
        entry = {"what": what, **evidence.as_dict()}
        if entry not in self.used:
            self.used.append(entry)


def start(name: str, device: str = "auto", profile: str = "quick") -> Lab:
    """Settle device and profile, show the badge, set style and seeds.

    name: the notebook's name without .ipynb. device: 'auto', 'cpu' or 'cuda'. profile: 'quick' or 'full'.
    Raises ValueError for another profile; `kernels.triton_mode.choose` raises for an impossible device.
    """
    if profile not in PROFILES:
        raise ValueError(f"profile={profile!r} is unknown; accepted: {', '.join(PROFILES)}")
    resolved = triton_mode.choose(
        device
    )  # before any kernel module is imported: it decides how they are decorated

    import numpy
    import torch

    from kernels.lab.figures import style

    style.apply()
    _quiet_warnings()
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)

    note = place.chapter_notes() / f"{name}.json"
    note.unlink(missing_ok=True)  # a chapter that fails must not keep the note of an earlier success
    device_name = torch.cuda.get_device_name() if resolved == "cuda" else "CPU (Triton interpreter)"
    commit = source.git_commit()
    versions = _versions()
    badge = _badge(name, device_name, commit, profile, versions)
    lab = Lab(name, resolved, profile, place.root(), badge, device_name, commit, versions)
    _display({"text/markdown": badge})
    return lab


def _quiet_warnings() -> None:
    """Keep the machine's paths out of the pages.

    A kernel that overflows on purpose, such as exp2 of minus infinity, makes NumPy warn under the interpreter.
    Any other warning is shown as its category and message, without the file that Python would print.
    """
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.")
    warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _badge(name: str, device_name: str, commit: str | None, profile: str, versions: dict[str, str]) -> str:
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    dirty = " (edited)" if source.git_dirty() else ""
    items = [
        ("device", device_name),
        ("date", f"{today} UTC"),
        ("commit", f"{commit}{dirty}" if commit else "unknown"),
        ("profile", profile),
        *((package, version) for package, version in versions.items()),
    ]
    cells = " · ".join(
        f'<span class="lab-badge-item">{key} <strong>{escape(value)}</strong></span>' for key, value in items
    )
    return f'<div class="lab-badge" role="note" aria-label="how this page was executed">{cells}</div>\n'


def _display(bundle: dict[str, str]) -> None:
    """Show a mime bundle in a notebook; in a plain script print its text form."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = None
    if get_ipython is not None and get_ipython() is not None:
        text = bundle.get("text/markdown", "")
        display({"text/plain": text, **bundle}, raw=True)
    else:
        print(bundle.get("text/markdown") or bundle.get("text/plain", ""))


def source_block(
    function: Callable | Any, highlight: Iterable[str] = (), start: str | None = None, end: str | None = None
) -> str:
    """The MyST code block that `Lab.show_source` displays; same arguments and errors."""
    python = function
    while hasattr(python, "fn"):  # triton's JITFunction, and autotuners and heuristics around it
        python = python.fn
    python = inspect.unwrap(python) if callable(python) else python
    lines, first = inspect.getsourcelines(python)
    file = Path(inspect.getsourcefile(python)).resolve()
    name = getattr(python, "__name__", str(python))
    lines, first = _excerpt(lines, first, start, end, name)
    marked = []
    for piece in [highlight] if isinstance(highlight, str) else highlight:
        hits = [number for number, line in enumerate(lines, start=1) if piece in line]
        if not hits:
            raise ValueError(
                f"highlight={piece!r} occurs in no line of {name}; accepted: text of the shown source"
            )
        marked += hits
    try:
        shown = file.relative_to(place.root()).as_posix()
    except ValueError:
        shown = file.name
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    body = "".join(line[indent:] if line.strip() else "\n" for line in lines).rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    head = [
        f"{fence}{{code-block}} python",
        f":caption: {shown}, from line {first}",
        f":lineno-start: {first}",
    ]
    if marked:
        head.append(":emphasize-lines: " + ",".join(map(str, sorted(set(marked)))))
    return "\n".join([*head, "", body, fence, ""])


def _excerpt(
    lines: list[str], first: int, start: str | None, end: str | None, name: str
) -> tuple[list[str], int]:
    low, high = 0, len(lines)
    if start is not None:
        low = next((i for i, line in enumerate(lines) if start in line), -1)
        if low < 0:
            raise ValueError(f"start={start!r} occurs in no line of {name}; accepted: text of its source")
    if end is not None:
        high = next((i + 1 for i, line in enumerate(lines) if i >= low and end in line), -1)
        if high < 0:
            raise ValueError(
                f"end={end!r} occurs in no line of {name} after start; accepted: text of its source"
            )
    return lines[low:high], first + low
