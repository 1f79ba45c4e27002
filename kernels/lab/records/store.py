"""The recorded runs in data/runs: finding the newest one, judging it stale, and adding one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kernels.lab.evidence import Evidence
from kernels.lab.records import device_code, judge, launches, place, schema, source
from kernels.lab.records.run import as_text, read_run, read_table
from kernels.lab.records.schema import RecordError


@dataclass(frozen=True)
class Record:
    """A recorded run: its folder and its run.json."""

    folder: Path
    info: dict[str, Any]

    @cached_property
    def _tables(self) -> dict[str, pd.DataFrame]:
        return {}

    def table(self, name: str = "measurements") -> pd.DataFrame:
        """One of 'measurements', 'counters', 'profile', validated on first use."""
        if name not in self._tables:
            self._tables[name] = read_table(self.folder, name)
        return self._tables[name]

    def rows(self, experiment: str, table: str = "measurements") -> pd.DataFrame:
        """The rows of one experiment."""
        df = self.table(table)
        return df[df["experiment"] == experiment].reset_index(drop=True)

    def evidence(self, note: str | None = None) -> Evidence:
        """The evidence line of whatever is shown from this record."""
        commit = self.info["git_commit"]
        return Evidence(
            "recorded",
            device=self.info["device"]["name"],
            date_utc=self.info["utc"][:10],
            commit=commit[:7] if commit else None,
            note=note,
            stale=stale(self),
        )


def load_all(base: Path | None = None, device: str | None = None) -> list[Record]:
    """Every recorded run, the best first: fresh before stale, full before quick, then the newest.

    base: data/runs by default. device: only runs on this device, by name. Raises RecordError for a broken
    record.
    """
    base = base or place.recorded_runs()
    found = []
    for path in base.glob("*/*/run.json"):
        record = Record(path.parent, read_run(path.parent))
        if device is None or record.info["device"]["name"] == device:
            found.append(record)

    def rank(record: Record):
        return (stale(record) is None, record.info["profile"] == "full", record.info["utc"])

    return sorted(found, key=rank, reverse=True)


def newest(
    experiment: str | None = None,
    device: str | None = None,
    table: str = "measurements",
    base: Path | None = None,
) -> Record | None:
    """The recorded run to show, or None.

    experiment: only runs that hold a good row of it. device: only runs on this device.
    """
    for record in load_all(base, device):
        if experiment is None or (record.rows(experiment, table)["status"] == "ok").any():
            return record
    return None


_current: dict[str, Any] = {}


def stale(record: Record) -> str | None:
    """Why the record no longer describes the kernels in the tree, or None when it does (`judge`).

    A run that does not name its files is stale as soon as any has changed.
    """
    if "hash" not in _current:
        _current["hash"] = source.kernels_sha256()
    if record.info["kernels_sha256"] == _current["hash"]:
        return None
    if "files" not in record.info:
        recorded, now = record.info["kernels_sha256"][:7], _current["hash"][:7]
        return f"the kernels have changed since this run ({recorded}, now {now})"
    known = str(record.folder)
    if known not in _current:
        if "files" not in _current:
            _current["files"] = source.kernels_files()
        _current[known] = judge.reason(record, _current["files"])
    return _current[known]


def finished_runs(base: Path | None = None) -> list[Record]:
    """Runs in the build folder, newest first."""
    base = base or place.build_runs()
    found = [Record(path.parent, read_run(path.parent)) for path in base.glob("*/run.json")]
    return sorted(found, key=lambda record: record.info["utc"], reverse=True)


def _settled(info: dict) -> dict:
    """A run's description with `git_dirty` settled: where a copy of the files ran, only their hash can tell."""
    commit = info["git_commit"]
    if commit and info["git_dirty"] is not False:
        here = source.kernels_sha256_at(commit)
        return info | {"git_dirty": None if here is None else here != info["kernels_sha256"]}
    return info


def described(record: Record) -> dict[str, Any]:
    """A run's description with its files and launches, where the tree or the run's commit is proved to be its code."""
    info, sha256 = dict(record.info), record.info["kernels_sha256"]
    here, commit = source.kernels_sha256() == sha256, info["git_commit"]
    then = source.kernels_files_at(commit, sha256) if commit and not here else None
    files = source.kernels_files() if here else then
    if files:
        info.setdefault("files", files)
    if "launches" not in info:
        found = launches.of_record(record) if here else then and launches.at_commit(commit, record.folder)
        if found is not None:
            info["launches"] = found
    if here:
        info.setdefault("device_code", device_code.digests())
    return info


def keep(run_id: str | None = None, partial: bool = False, base: Path | None = None) -> Path:
    """Copy a finished run from the build folder to data/runs/<device>/<run_id>/; returns the new folder.

    run_id: the newest by default. partial: also take a run whose chapters did not all end well. Nothing else
    in the project writes there. Raises RecordError when there is nothing fit to keep.
    """
    runs = finished_runs()
    if run_id is not None:
        runs = [record for record in runs if record.info["run_id"] == run_id]
    if not runs:
        named = f"run {run_id!r} is not" if run_id else "no run is"
        raise RecordError(f"{named} in the build folder; execute the book on a CUDA machine first")
    record = runs[0]
    if not record.info["complete"] and not partial:
        bad = [name for name, entry in record.info["chapters"].items() if entry["status"] != "ok"]
        raise RecordError(
            f"run {record.info['run_id']} is not complete ({', '.join(bad) or 'its end was not noted'}); "
            "finish the book, or keep it with --partial"
        )
    tables = {name: record.table(name) for name in schema.TABLES}
    if not len(tables["measurements"]):
        raise RecordError(f"run {record.info['run_id']} holds no measurement")
    target = (
        (base or place.recorded_runs())
        / place.device_folder(record.info["device"]["name"])
        / record.info["run_id"]
    )
    if target.exists():
        raise RecordError(f"run {record.info['run_id']} is already recorded")
    draft = target.with_name(target.name + ".part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    place.write_text(draft / "run.json", as_text(_settled(described(record))))
    for name, df in tables.items():
        if len(df):
            shutil.copyfile(record.folder / f"{name}.csv", draft / f"{name}.csv")
    draft.rename(target)
    return target
