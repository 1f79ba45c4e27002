"""The columns of a record and the rules that every row keeps, checked on write and on read."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

SCHEMA_VERSION = 1
OPS = ("sparse_mla_decode", "indexer_logits", "indexer_topk", "decode_step")
STAGES = ("baseline", "mma", "split_k", "indexer_cap", "bf16_gemm", "fused_glue")
TILE_CLASSES = ("sm120", "native")
TIMERS = ("chain", "cold", "eager")
STATUSES = ("ok", "skipped", "wrong", "failed")

TEXT = ("run_id", "experiment", "op", "impl", "stage", "tile_class")
SHAPE = (
    "batch",
    "heads",
    "topk",
    "swa_tokens",
    "page_size",
    "context",
    "max_context",
    "num_splits",
    "block_h",
    "block_t",
    "num_warps",
    "num_stages",
)
TIMES = ("median_us", "p20_us", "p80_us")
MEASUREMENTS = (
    *TEXT,
    *SHAPE,
    "timer",
    "samples",
    *TIMES,
    "rel_error",
    "tolerance",
    "status",
    "reason",
    "tokens_per_s",
)
COUNTERS = (
    "run_id",
    "experiment",
    "op",
    "impl",
    "tile_class",
    "batch",
    "heads",
    "topk",
    "kernel",
    "metric",
    "value",
    "unit",
    "status",
    "reason",
)
PROFILE = (
    "run_id",
    "experiment",
    "stage",
    "batch",
    "context",
    "max_context",
    "group",
    "kernel",
    "launches",
    "gpu_us",
    "share",
    "status",
    "reason",
)
TABLES = {"measurements": MEASUREMENTS, "counters": COUNTERS, "profile": PROFILE}
WHOLE = {*SHAPE, "samples", "launches"}
NUMBERS = {*TIMES, "rel_error", "tolerance", "tokens_per_s", "value", "gpu_us", "share"}

RUN_KEYS = {
    "schema_version": int,
    "run_id": str,
    "utc": str,
    "device": dict,
    "driver": (str, type(None)),
    "cuda": (str, type(None)),
    "torch": str,
    "triton": str,
    "python": str,
    "git_commit": (str, type(None)),
    "git_dirty": (bool, type(None)),
    "kernels_sha256": str,
    "state_before": dict,
    "state_after": (dict, type(None)),
    "profile": str,
    "chapters": dict,
    "experiments": dict,
    "peers": dict,
    "complete": bool,
}
# Which files, launches and kernels were timed (`source`, `launches`, `device_code`); the oldest runs do not say
OPTIONAL_KEYS = {"files": dict, "launches": dict, "device_code": dict}
DEVICE_KEYS = {
    "name": str,
    "uuid_sha256": str,
    "capability": str,
    "sm_count": int,
    "smem_optin_bytes": int,
    "l2_bytes": int,
    "memory_bytes": int,
}
_PATH = re.compile(r"(?:^|[\s'\"(=])(?:/[\w.+-]+){2,}|[A-Za-z]:\\")


class RecordError(ValueError):
    """A record breaks its schema; the message names the file, the column and the row."""


def _fail(where: str, column: str, row: object, problem: str) -> None:
    raise RecordError(f"{where}: column {column}, row {row}: {problem}")


def blank(value: object) -> bool:
    """True for None, NaN and the empty string."""
    return value == "" if isinstance(value, str) else value is None or bool(pd.isna(value))


def frame(rows: list[dict[str, Any]], table: str = "measurements") -> pd.DataFrame:
    """Rows as a DataFrame with exactly the table's columns, missing values as NA.

    Raises RecordError for a key that is no column.
    """
    columns = TABLES[table]
    for number, row in enumerate(rows):
        unknown = sorted(set(row) - set(columns))
        if unknown:
            _fail(table, unknown[0], number, f"is no column; accepted: {', '.join(columns)}")
    return typed(pd.DataFrame([{c: row.get(c) for c in columns} for row in rows], columns=list(columns)))


def typed(df: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers as Int64, other numbers as float, the rest as text with '' for missing."""
    df = df.copy()
    for column in df.columns:
        if column in WHOLE:
            df[column] = pd.to_numeric(df[column], errors="coerce").astype("Int64")
        elif column in NUMBERS:
            df[column] = pd.to_numeric(df[column], errors="coerce").astype(float)
        else:
            df[column] = df[column].astype(object).where(df[column].notna(), "").astype(str)
    return df


def validate(
    df: pd.DataFrame, table: str, where: str | None = None, run_id: str | None = None
) -> pd.DataFrame:
    """Check every row and return the typed frame.

    where: the file's name for messages. run_id: the run that all rows must belong to. Raises RecordError.
    """
    where = where or f"{table}.csv"
    columns = TABLES[table]
    if list(df.columns) != list(columns):
        wrong = [c for c in df.columns if c not in columns] + [c for c in columns if c not in df.columns]
        name = wrong[0] if wrong else "order"
        _fail(where, name, "header", f"the columns are not the schema's; accepted: {', '.join(columns)}")
    for column in df.columns:
        if column in WHOLE | NUMBERS:
            for row, value in df[column].items():
                _check_number(where, column, row, value)
    df = typed(df)
    for row, entry in df.iterrows():
        _check_row(entry, row, table, where, run_id)
    return df


def _check_number(where: str, column: str, row: object, value: object) -> None:
    if blank(value):
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        _fail(where, column, row, f"{value!r} is no number")
    if column in WHOLE and number != int(number):
        _fail(where, column, row, f"{value!r} is no whole number")
    if number < 0 and column != "value":
        _fail(where, column, row, f"{value!r} is negative")


def _check_row(entry: pd.Series, row: object, table: str, where: str, run_id: str | None) -> None:
    choices = {
        "status": STATUSES,
        "op": OPS,
        "timer": TIMERS,
        "tile_class": (*TILE_CLASSES, ""),
        "stage": (*STAGES, ""),
    }
    for column, accepted in choices.items():
        if column in entry and entry[column] not in accepted:
            _fail(
                where,
                column,
                row,
                f"{entry[column]!r} is unknown; accepted: {', '.join(filter(None, accepted))}",
            )
    for column in ("run_id", "experiment"):
        if not entry[column]:
            _fail(where, column, row, "is empty")
    if run_id is not None and entry["run_id"] != run_id:
        _fail(where, "run_id", row, f"{entry['run_id']!r} is not this run's {run_id!r}")
    if _PATH.search(entry["reason"]):
        _fail(where, "reason", row, "holds a path; a record names no machine and no path")
    if entry["status"] != "ok" and not entry["reason"]:
        _fail(where, "reason", row, f"is empty although status is {entry['status']!r}")
    if table == "measurements":
        _check_times(entry, row, where)
    elif table == "counters" and entry["status"] == "ok" and blank(entry["value"]):
        _fail(where, "value", row, "is empty although status is 'ok'")
    elif table == "profile" and entry["status"] == "ok" and blank(entry["share"]):
        _fail(where, "share", row, "is empty although status is 'ok'")


def _check_times(entry: pd.Series, row: object, where: str) -> None:
    if entry["status"] != "ok":
        for column in TIMES:
            if not blank(entry[column]):
                _fail(where, column, row, f"holds a time although status is {entry['status']!r}")
        return
    for column in ("batch", "samples", *TIMES, "rel_error", "tolerance"):
        if blank(entry[column]):
            _fail(where, column, row, "is empty although status is 'ok'")
    if not 0 < entry["p20_us"] <= entry["median_us"] <= entry["p80_us"]:
        _fail(where, "median_us", row, "the percentiles are not ordered 0 < p20 <= median <= p80")
    if entry["rel_error"] > entry["tolerance"]:
        _fail(
            where,
            "rel_error",
            row,
            f"{entry['rel_error']:.3g} exceeds the tolerance {entry['tolerance']:.3g}",
        )
    if entry["op"] == "decode_step" and blank(entry["tokens_per_s"]):
        _fail(where, "tokens_per_s", row, "is empty in a row of decode_step")


def validate_run(run: dict[str, Any], where: str = "run.json") -> dict[str, Any]:
    """Check run.json: exactly the schema's keys, their types, and no path in any text. Raises RecordError."""
    run_keys = RUN_KEYS | {key: kind for key, kind in OPTIONAL_KEYS.items() if key in run}
    for keys, given, prefix in ((run_keys, run, ""), (DEVICE_KEYS, run.get("device", {}), "device.")):
        for key in sorted(set(keys) ^ set(given)):
            raise RecordError(f"{where}: key {prefix}{key} is {'missing' if key in keys else 'unknown'}")
        for key, kind in keys.items():
            if not isinstance(given[key], kind):
                raise RecordError(
                    f"{where}: key {prefix}{key} is {type(given[key]).__name__}; accepted: {kind}"
                )
    if run["schema_version"] != SCHEMA_VERSION:
        raise RecordError(f"{where}: schema_version {run['schema_version']}; accepted: {SCHEMA_VERSION}")
    if run["profile"] not in ("quick", "full"):
        raise RecordError(f"{where}: profile {run['profile']!r}; accepted: quick, full")
    for name, chapter in run["chapters"].items():
        if not {"seconds", "status"} <= set(chapter):
            raise RecordError(f"{where}: chapters.{name} lacks seconds or status")
    for text in _texts(run):
        if _PATH.search(text):
            raise RecordError(f"{where}: holds a path ({text[:40]!r}); a record names no machine and no path")
    return run


def _texts(value: Any):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
