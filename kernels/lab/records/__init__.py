"""Recorded GPU runs: their schema, how a run is written, found, judged stale and kept.

`open_run` and `finish_run` write below _build/runs; `keep` (that is `make record`) copies a finished run to
data/runs, and nothing else writes there.
"""

from kernels.lab.records.run import Run, finish_run, open_run
from kernels.lab.records.schema import RecordError
from kernels.lab.records.source import kernels_sha256
from kernels.lab.records.store import Record, keep, load_all, newest, stale

__all__ = [
    "Record",
    "RecordError",
    "Run",
    "finish_run",
    "keep",
    "kernels_sha256",
    "load_all",
    "newest",
    "open_run",
    "stale",
]
