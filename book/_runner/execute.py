"""Runs chapters in worker processes: in parallel without a GPU, one after the other on one."""

import json
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .book import Book, Chapter
from .progress import Progress

HEARTBEAT_SECONDS = 20.0
BOOK_FOLDER = Path(__file__).resolve().parents[1]
START = (
    f"import sys; sys.path.insert(0, {str(BOOK_FOLDER)!r}); from _runner.worker import main; sys.exit(main())"
)


class Pool:
    """Executes chapters and hands each result to `finished(chapter, result)`, in any order."""

    def __init__(
        self,
        book: Book,
        progress: Progress,
        *,
        timeout: float,
        jobs: int,
        run_id: str,
        kernels_base: Path,
        measures: bool = True,
    ):
        self.book = book
        self.progress = progress
        self.timeout = timeout
        self.jobs = jobs
        self.run_id = run_id
        self.kernels_base = kernels_base
        self.measures = measures
        self._workers = set()
        self._stopped = threading.Event()
        self._reporting = threading.Lock()

    def run(self, chapters: list[Chapter], parameters: dict, finished) -> None:
        """Execute the chapters; on an interruption the workers and their kernels end, too."""

        def one(chapter: Chapter):
            if self._stopped.is_set():
                return
            result = self._execute(chapter, parameters)
            with self._reporting:
                if not self._stopped.is_set():
                    finished(chapter, result)

        with ThreadPoolExecutor(max_workers=self.jobs) as threads:
            waiting = [threads.submit(one, chapter) for chapter in chapters]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                self._stop()
                raise

    def _execute(self, chapter: Chapter, parameters: dict) -> dict:
        for folder in ("executed", "failed", "logs"):
            (self.book.build / folder).mkdir(parents=True, exist_ok=True)
        log = self.book.build / "logs" / f"{chapter.name}.log"
        begun = self.progress.elapsed()
        readable, writable = os.pipe()
        job = {
            "source": str(chapter.source),
            "executed": str(self.book.executed / f"{chapter.name}.ipynb"),
            "failed": str(self.book.build / "failed" / f"{chapter.name}.ipynb"),
            "parameters": parameters,
            "timeout": self.timeout,
            "cwd": str(chapter.source.parent),
            "kernels_base": str(self.kernels_base),
            "events": writable,
        }
        with open(log, "w", encoding="utf-8") as output, os.fdopen(readable, "rb", buffering=0) as events:
            worker = subprocess.Popen(
                [sys.executable, "-c", START],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writable,),
                env=self._environment(),
                text=True,
            )
            os.close(writable)
            self._workers.add(worker)
            worker.stdin.write(json.dumps(job))
            worker.stdin.close()
            result = self._follow(chapter.name, events)
            code = worker.wait()
            self._workers.discard(worker)
        seconds = round(self.progress.elapsed() - begun, 2)
        return {**(result or _lost(code, log)), "seconds": seconds}

    def _follow(self, name: str, events) -> dict | None:
        """Print a worker's events and return its last one; None when it ended without."""
        self.progress.chapter(name, "starts its kernel")
        last, pending = {"event": "begin"}, b""
        begun = self.progress.elapsed()
        while True:
            ready, _, _ = select.select([events], [], [], HEARTBEAT_SECONDS)
            if not ready:
                if last["event"] == "cell":
                    seconds = self.progress.elapsed() - begun
                    self.progress.chapter(
                        name, f"cell {last['cell']} of {last['of']}, running for {seconds:.0f} s"
                    )
                continue
            received = events.read(65536)
            if not received:
                return last if last["event"] == "done" else None
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                last = json.loads(line)
                begun = self.progress.elapsed()
                if last["event"] == "cell":
                    self.progress.cell(name, last)

    def _environment(self) -> dict:
        """The worker's and its kernel's environment: this repository's kernels, nobody's Jupyter settings."""
        private = self.book.build / "jupyter"
        ahead = [str(self.book.root), os.environ.get("PYTHONPATH", "")]
        own_cores = str(max(1, (os.cpu_count() or 1) // self.jobs))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in ahead if path),
            "PYTHONUNBUFFERED": "1",
            "JUPYTER_CONFIG_DIR": str(private / "config"),
            "IPYTHONDIR": str(private / "ipython"),
            "JUPYTER_PLATFORM_DIRS": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", own_cores),
            # Each compiler imports torch: chapters side by side start as few as there are cores
            "KERNELS_COMPILE_WORKERS": os.environ.get("KERNELS_COMPILE_WORKERS", own_cores),
            "BOOK_BUILD_DIR": str(self.book.build),
            "BOOK_RUN_ID": self.run_id,
        } | ({} if self.measures else {"BOOK_SKIP_EXPERIMENTS": "all"})

    def _stop(self) -> None:
        self._stopped.set()
        for worker in list(self._workers):
            worker.terminate()
        for worker in list(self._workers):
            try:
                worker.wait(timeout=10)
            except subprocess.TimeoutExpired:
                worker.kill()


def _lost(code: int, log: Path) -> dict:
    """The result of a worker that ended without a word."""
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
    cause = f"the worker process ended with code {code}; its log is {log.parent.name}/{log.name}"
    error = {"cell": 0, "cell_id": "", "line": "", "cause": cause, "detail": "\n".join(tail)}
    return {"status": "failed", "cells": 0, "executed_cells": 0, "error": error}
