"""A GPU run while it is measured: _build/runs/<run_id>/, written experiment by experiment, so that a cut-off
run keeps what was finished.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from kernels.lab.records import place, schema, source
from kernels.lab.records.schema import RecordError

PEERS = ("sgl-flash-mla", "sgl-deep-gemm")


def utc_now() -> str:
    """The time as '2026-11-29T18:00:00Z'."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def version(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_device() -> dict[str, Any]:
    """The GPU of this machine with the keys of run.json's `device`. Raises RuntimeError without one."""
    from kernels.lab import devices

    found = devices.present()
    if found is None:
        raise RuntimeError("a run needs a CUDA device, and torch sees none")
    return {key: found[key] for key in schema.DEVICE_KEYS}


def read_table(folder: Path, table: str) -> pd.DataFrame:
    """A table of a run, validated; an empty frame where the run has none. Raises RecordError."""
    path = folder / f"{table}.csv"
    if not path.is_file():
        return schema.frame([], table)
    df = pd.read_csv(path, dtype=str, keep_default_na=False)
    return schema.validate(df, table, where=f"{folder.name}/{path.name}", run_id=folder.name)


def as_text(info: dict[str, Any]) -> str:
    """run.json's text."""
    return json.dumps(info, indent=1, ensure_ascii=False) + "\n"


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a run, validated. Raises RecordError."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder.name}/run.json cannot be read: {error.__class__.__name__}") from error
    return schema.validate_run(run, where=f"{folder.name}/run.json")


class Run:
    """One run's folder. `open_run` makes or continues it; only chapters on a GPU do."""

    def __init__(self, folder: Path, info: dict[str, Any]):
        self.folder = folder
        self.info = info

    @property
    def run_id(self) -> str:
        """The folder's name, e.g. '20261129T180000Z'."""
        return self.info["run_id"]

    def table(self, name: str = "measurements") -> pd.DataFrame:
        """A table as it stands on disk, validated."""
        return read_table(self.folder, name)

    def has(self, experiment: str) -> bool:
        """Whether this very run has measured the experiment (rows carried over from an earlier run do not
        count).
        """
        return self.info["experiments"].get(experiment, {}).get("run_id") == self.run_id

    def put(
        self,
        experiment: str,
        df: pd.DataFrame,
        table: str = "measurements",
        chapter: str | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Replace an experiment's rows and write the table, in one step.

        df: the schema's columns; run_id and experiment are filled in. Raises RecordError before anything is
        written.
        """
        df = df.assign(run_id=self.run_id, experiment=experiment)[list(schema.TABLES[table])]
        df = schema.validate(df, table, run_id=self.run_id)
        old = self.table(table)
        kept = old[old["experiment"] != experiment]
        whole = pd.concat([kept, df], ignore_index=True) if len(kept) else df
        place.write_text(self.folder / f"{table}.csv", whole.to_csv(index=False, float_format="%.6g"))
        self.info["experiments"][experiment] = {
            "run_id": self.run_id,
            "utc": utc_now(),
            "chapter": chapter,
            "seconds": round(seconds, 2),
        }
        self.save()

    def finish_chapter(self, name: str, seconds: float, status: str) -> None:
        """Note a chapter's end, and the device's state after it."""
        from kernels.lab import timing

        self.info["chapters"][name] = {"seconds": round(seconds, 1), "status": status, "run_id": self.run_id}
        self.info["state_after"] = timing.device_state()
        self.save()

    def save(self) -> None:
        """Write run.json, validated."""
        schema.validate_run(self.info)
        place.write_text(self.folder / "run.json", as_text(self.info))


def _new_info(run_id: str, profile: str) -> dict[str, Any]:
    import torch

    from kernels.lab import timing

    state = timing.device_state()
    return {
        "schema_version": schema.SCHEMA_VERSION,
        "run_id": run_id,
        "utc": utc_now(),
        "device": describe_device(),
        "driver": state.pop("driver", None),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": version("triton") or "unknown",
        "python": platform.python_version(),
        "git_commit": source.git_commit(),
        "git_dirty": source.git_dirty(),
        "kernels_sha256": source.kernels_sha256(),
        "files": source.kernels_files(),
        "state_before": state,
        "state_after": None,
        "profile": profile,
        "chapters": {},
        "experiments": {},
        "peers": {name: version(name) for name in PEERS if version(name)},
        "complete": False,
    }


SAME = ("device", "torch", "triton", "kernels_sha256", "profile")


def open_run(profile: str, run_id: str | None = None) -> Run:
    """The run of this execution of the book, made on first use.

    run_id: BOOK_RUN_ID, or the time, by default. A new run takes over the rows of the newest run of the same
    device, profile, versions and kernels: chapters that did not have to run again stay in the record.
    """
    run_id = run_id or os.environ.get("BOOK_RUN_ID") or datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = place.build_runs() / run_id
    if (folder / "run.json").is_file():
        return Run(folder, read_run(folder))
    run = Run(folder, _new_info(run_id, profile))
    earlier = newest_like(run.info)
    if earlier is not None:
        for table in schema.TABLES:
            rows = earlier.table(table)
            if len(rows):
                text = rows.assign(run_id=run_id).to_csv(index=False, float_format="%.6g")
                place.write_text(folder / f"{table}.csv", text)
        run.info["experiments"] = dict(earlier.info["experiments"])
        run.info["chapters"] = dict(earlier.info["chapters"])
    run.save()
    return run


def newest_like(info: dict[str, Any]) -> Run | None:
    """The newest run in the build folder with the same device, profile, versions and kernels, or None."""
    best = None
    for path in place.build_runs().glob("*/run.json"):
        if path.parent.name == info["run_id"]:
            continue
        try:
            other = read_run(path.parent)
        except RecordError:
            continue
        same = all(other[key] == info[key] for key in SAME)
        if same and (best is None or other["utc"] > best.info["utc"]):
            best = Run(path.parent, other)
    return best


def finish_run(run_dir: Path, manifest: dict[str, Any]) -> None:
    """Complete a run's record from the runner's manifest: every chapter's seconds and status.

    run_dir: _build/runs/<run_id>; nothing happens where no chapter has measured. The run is complete when
    every chapter of the manifest ended well.
    """
    folder = Path(run_dir)
    if not (folder / "run.json").is_file():
        return
    run = Run(folder, read_run(folder))
    chapters = manifest.get("chapters", {})
    for name, entry in chapters.items():
        run.info["chapters"][name] = {
            "seconds": round(float(entry.get("seconds") or 0.0), 1),
            "status": entry.get("status", "unknown"),
            "run_id": entry.get("run_id") or run.run_id,
        }
    run.info["complete"] = bool(chapters) and all(entry.get("status") == "ok" for entry in chapters.values())
    run.save()
