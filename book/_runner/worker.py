"""One chapter's execution, in a process of its own: papermill, then the checks that papermill does not make.

Reads a job (JSON) from standard input and writes events (JSON lines) to the file descriptor it names. The
executed copy has a temporary name until everything has run; a failed one goes to another folder.
"""

import json
import os
import signal
import sys
from pathlib import Path

import nbformat
from papermill.execute import execute_notebook

from _runner.engine import ChapterFailed, Run, counted, register
from _runner.kernelspec import NAME, complaint

START_TIMEOUT_SECONDS = 120


def main() -> int:
    job = json.load(sys.stdin)
    events = os.fdopen(job["events"], "w", buffering=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def report(event: dict):
        events.write(json.dumps(event) + "\n")

    run = Run(Path(job["kernels_base"]), report)
    error = None
    try:
        _execute(job, run)
    except ChapterFailed as failure:
        error = {"cause": failure.cause, "detail": failure.detail}
    except Exception as failure:  # papermill's and nbclient's own: the manifest must name every one
        cause = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
        if run.current is None and run.executed == 0:
            cause = f"the kernel did not start: {cause}"
        error = {"cause": cause, "detail": ""}
    if error is not None:
        place = run.current or {"cell": 0, "cell_id": "", "line": ""}
        error = {**place, **error}
    report(
        {
            "event": "done",
            "status": "failed" if error else "ok",
            "cells": run.total,
            "executed_cells": run.executed,
            "error": error,
        }
    )
    return 1 if error else 0


def _execute(job: dict, run: Run) -> None:
    source, final = Path(job["source"]), Path(job["executed"])
    temporary = final.with_name(f".{final.name}.tmp.ipynb")
    failed = Path(job["failed"])
    failed.unlink(missing_ok=True)
    temporary.unlink(missing_ok=True)
    _check_source(source, run)
    try:
        notebook = execute_notebook(
            str(source),
            str(temporary),
            parameters=job["parameters"],
            engine_name=register(run),
            kernel_name=NAME,
            language="python",
            progress_bar=False,
            start_timeout=START_TIMEOUT_SECONDS,
            execution_timeout=job["timeout"],
            cwd=job["cwd"],
        )
        _check_every_cell_ran(notebook, run)
        nbformat.write(_cleaned(notebook), temporary)
        os.replace(temporary, final)
    except BaseException:
        if temporary.is_file():
            os.replace(temporary, failed)
        raise


def _check_source(source: Path, run: Run) -> None:
    try:
        notebook = nbformat.read(source, as_version=4)
    except Exception as error:
        raise ChapterFailed(f"{source.name} is no notebook: {error}") from None
    if found := complaint(notebook):
        raise ChapterFailed(found)
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]
    if "parameters" not in tags:
        raise ChapterFailed("no cell is tagged 'parameters': the device and profile could not be set")
    run.total = sum(counted(cell) for cell in notebook.cells)
    run.report({"event": "start", "of": run.total})


def _check_every_cell_ran(notebook, run: Run) -> None:
    number = 0
    for cell in notebook.cells:
        if not counted(cell):
            continue
        number += 1
        if cell.execution_count is None:
            raise ChapterFailed(f"cell {number} of {run.total} did not run")


def _cleaned(notebook):
    """Hide the injected cell; keep the parameters, drop timings and the paths of this machine."""
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags and "remove-cell" not in tags:
            cell.metadata["tags"] = [*tags, "remove-cell"]
    about = notebook.metadata.pop("papermill", {})
    notebook.metadata["papermill"] = {key: about[key] for key in ("parameters", "version") if key in about}
    return notebook


if __name__ == "__main__":
    sys.exit(main())
