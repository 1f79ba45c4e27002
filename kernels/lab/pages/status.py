"""The run status page: every chapter's last execution, the evidence it shows, and what is stale."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from kernels.lab import records
from kernels.lab.evidence import KINDS, MARKS
from kernels.lab.figures.tables import table
from kernels.lab.records import RecordError, place

PAGE = "book/status.md"


def write(staged: Path, manifest: dict[str, Any]) -> None:
    """Write the page into the staged sources.

    staged: the folder that Sphinx reads. manifest: the runner's, of which `chapters` is used.
    """
    target = Path(staged) / PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    contents = Path(staged) / "_toc.yml"
    order = (
        re.findall(r"\bfile: book/(\S+)", contents.read_text(encoding="utf-8")) if contents.is_file() else []
    )
    target.write_text(page(manifest, order), encoding="utf-8")


def page(manifest: dict[str, Any], order: list[str] | None = None) -> str:
    """The page as MyST Markdown. order: chapters as the table of contents has them; others follow by name."""
    place_of = {name: at for at, name in enumerate(order or [])}
    entries = manifest.get("chapters", {})
    # The manifest lists chapters as they ended.
    names = sorted(entries, key=lambda name: (place_of.get(name, len(place_of)), name))
    chapters = {name: entries[name] for name in names}
    notes = {name: _note(name) for name in chapters}
    parts = [
        "(run-status)=\n# Run status\n",
        "Every page of this book was executed. This one, written when the site was built, says where, when "
        "and with which versions, and which evidence each chapter shows.\n",
        _warnings(notes),
        "## Chapters\n",
        table(
            _chapters(chapters, notes),
            "tab-status-chapters",
            "The last execution of each chapter.",
            sortable=False,
            stacked=True,
            columns={
                "chapter": "chapter",
                "status": "status",
                "seconds": "seconds",
                "evidence": "evidence",
                "device": "device",
                "profile": "profile",
                "when": "executed (UTC)",
                "commit": "commit",
            },
            formats={"chapter": str, "seconds": "{:.1f}"},
        ),
        "Evidence counts the figures, tables and numbers of each kind: "
        + ", ".join(f"{MARKS[kind]} {kind} ({meaning})" for kind, meaning in KINDS.items())
        + ".\n",
        "## Versions\n",
        table(
            _versions(chapters),
            "tab-status-versions",
            "What the chapters were executed with.",
            sortable=False,
        ),
        "## Recorded runs\n",
        _records(),
    ]
    return "\n".join(parts)


def _note(name: str) -> dict[str, Any]:
    """What the chapter itself left behind when it ended; empty where it did not end."""
    try:
        return json.loads((place.chapter_notes() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _stale(note: dict[str, Any]) -> list[str]:
    reasons = [item["stale"] for item in note.get("evidence", []) if item.get("stale")]
    return list(dict.fromkeys(reasons))


def _warnings(notes: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, note in notes.items():
        absent = {item["note"] for item in note.get("evidence", []) if item.get("available") is False}
        reasons = [f"stale: {reason}" for reason in _stale(note)] + _joined(absent)
        if reasons:
            lines.append(f"- {_link(name)}: {'; '.join(reasons)}")
    if not lines:
        return ":::{tip}\nNo chapter shows a stale or missing record.\n:::\n"
    return (
        ":::{warning}\nResults that no recorded run holds, or whose record is older than the kernel that it timed:\n\n"
        + "\n".join(lines)
        + "\n:::\n"
    )


def _joined(reasons: Iterable[str | None]) -> list[str]:
    """The reasons, those that differ only in the experiment's name (the last word) as one."""
    groups: dict[str, list[str]] = {}
    for reason in sorted(filter(None, reasons)):
        start, _, last = reason.rpartition(" ")
        groups.setdefault(start, []).append(last)
    return [f"{start} {', '.join(last)}".strip() for start, last in groups.items()]


def _link(name: str) -> str:
    """A link to a chapter, whose title Sphinx fills in."""
    return f"{{doc}}`{name}`"


def _chapters(chapters: dict[str, Any], notes: dict[str, dict[str, Any]]) -> pd.DataFrame:
    rows = []
    for name, entry in chapters.items():
        note = notes[name]
        device = entry.get("device") or {}
        kinds = Counter(item["kind"] for item in note.get("evidence", []) if item.get("available", True))
        shown = " ".join(f"{MARKS[kind]}\u202f{count}" for kind, count in kinds.items())
        status = entry.get("status", "unknown")
        rows.append(
            {
                "chapter": _link(name) if entry.get("source", "").startswith("book/") else name,
                "status": status + (", stale record" if _stale(note) else ""),
                "seconds": entry.get("seconds"),
                "device": note.get("device_name") or device.get("name"),
                "profile": entry.get("profile"),
                "when": (entry.get("started") or "")[:16].replace("T", " "),
                "commit": (entry.get("git_commit") or "")[:7] or None,
                "evidence": shown or None,
            }
        )
    columns = ["chapter", "status", "seconds", "device", "profile", "when", "commit", "evidence"]
    return pd.DataFrame(rows, columns=columns)


def _versions(chapters: dict[str, Any]) -> pd.DataFrame:
    packages: dict[str, list[str]] = {}
    for entry in chapters.values():
        for package, version in (entry.get("versions") or {}).items():
            seen = packages.setdefault(package, [])
            if version not in seen:
                seen.append(version)
    rows = [{"package": package, "version": ", ".join(seen)} for package, seen in sorted(packages.items())]
    return pd.DataFrame(rows, columns=["package", "version"])


def _seconds(info: dict[str, Any]) -> float:
    """A run's seconds: its chapters', or its experiments' where they were measured without the notebooks."""
    return sum(entry["seconds"] for entry in (info["chapters"] or info.get("experiments") or {}).values())


def _records() -> str:
    try:
        found = records.load_all()
    except RecordError as error:
        return f":::{{warning}}\nA record breaks its schema: {error}\n:::\n"
    if not found:
        return (
            "No GPU run is recorded yet. `make book` on a machine with an NVIDIA GPU measures one, "
            "`make record` keeps it.\n"
        )
    rows = []
    for record in found:
        info, counts = record.info, record.table()["status"].value_counts()
        timed = int(counts.get("ok", 0))
        versions = {"torch": info["torch"], "triton": info["triton"], **info["peers"]}
        rows.append(
            {
                "run": f"{info['device']['name']}: {info['run_id']}, {info['profile']}",
                "commit": (info["git_commit"] or "")[:7] or None,
                "rows": f"{timed:,} timed, {int(counts.sum()) - timed:,} with a reason",
                "seconds": round(_seconds(info)),
                "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
                "stale": records.stale(record) or "no",
            }
        )
    return table(
        pd.DataFrame(rows),
        "tab-status-records",
        "The runs in data/runs.",
        sortable=False,
        stacked=True,
        columns={
            "run": "device: run, profile",
            "commit": "commit",
            "rows": "rows",
            "seconds": "seconds",
            "versions": "versions",
            "stale": "stale",
        },
    )
