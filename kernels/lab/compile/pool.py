"""A pool of compiler processes that lives as long as this process and survives a compiler crash."""

import atexit
import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading

from kernels.lab.compile.request import python_path
from kernels.lab.compile.worker import read_message, write_message

TIMEOUT_SECONDS = 300
_ENVIRONMENT = {
    "TRITON_INTERPRET": "0",
    "TRITON_DUMP_PTXAS_LOG": "1",
    "TRITON_ALWAYS_COMPILE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


class _Worker:
    """One process; started at the first request, and again after a crash."""

    def __init__(self):
        self.process = None
        self.log = None

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from kernels.lab.compile.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": python_path()},
            # Jupyter signals a closing kernel's group and waits for children that only this process can reap
            process_group=0,
        )

    def _last_words(self) -> str:
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 4000))
        lines = self.log.read().decode(errors="replace").split("\n")
        return " ".join(line.strip() for line in lines[-12:] if line.strip())[-800:]

    def ask(self, request: dict) -> dict:
        if self.process is None or self.process.poll() is not None:
            self._start()
        watchdog = threading.Timer(TIMEOUT_SECONDS, self.process.kill)
        watchdog.start()
        try:
            write_message(self.process.stdin, request)
            reply = read_message(self.process.stdout)
        except (BrokenPipeError, OSError):
            reply = None
        finally:
            timed_out = not watchdog.is_alive()
            watchdog.cancel()
        if reply is None:
            status = self.process.wait()
            why = f"took more than {TIMEOUT_SECONDS} s" if timed_out else f"ended with status {status}"
            reply = {"crash": f"the compiler process {why}: {self._last_words()}"}
            self.process = None
        return reply

    def let_go(self) -> None:
        """Close the pipe: the process ends when it has answered."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def stop(self) -> None:
        self.let_go()
        if self.process is not None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


def worker_count() -> int:
    """Compiler processes: one a core, or `KERNELS_COMPILE_WORKERS`."""
    return max(1, int(os.environ.get("KERNELS_COMPILE_WORKERS") or os.cpu_count() or 1))


_workers: list[_Worker] = []
_lock = threading.Lock()
_sources: dict[str, str] = {}
_shared: tempfile.TemporaryDirectory | None = None


def _depth(item: tuple[int, dict]) -> int:
    return item[1].get("tile", {}).get("num_stages", 1)


def ask_all(requests: list[dict], sources: dict[str, str]) -> list[dict]:
    """Answers in the order of the requests; as many at once as there are workers.

    `sources` is a hash of the source files behind each module: when one that workers may have imported has changed,
    they end. Pipeline depths are taken one after the other: a tile's second depth is often the first one again,
    which `reuse` finds once that is done.
    """
    global _shared
    with _lock:
        if any(_sources.get(module, found) != found for module, found in sources.items()):
            stop()
        _sources.update(sources)
        if _shared is None:
            _shared = tempfile.TemporaryDirectory(prefix="kernels-reuse-")
        while len(_workers) < min(worker_count(), len(requests)):
            _workers.append(_Worker())
        pending: queue.SimpleQueue = queue.SimpleQueue()
        for index, request in sorted(enumerate(requests), key=_depth):
            pending.put((index, request | {"reuse": _shared.name}))
        replies: list[dict] = [{} for _ in requests]

        def serve(worker: _Worker) -> None:
            while True:
                try:
                    index, request = pending.get_nowait()
                except queue.Empty:
                    return
                replies[index] = worker.ask(request)

        threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in _workers[: len(requests)]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return replies


@atexit.register
def stop() -> None:
    """End the worker processes; the next request starts new ones."""
    global _shared
    for worker in _workers:
        worker.let_go()
    while _workers:
        _workers.pop().stop()
    _sources.clear()
    if _shared is not None:
        _shared.cleanup()
        _shared = None
