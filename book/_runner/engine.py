"""A papermill engine that knows where it is, and that a cell can fail in more ways than by an exception.

It adds to papermill's own: a private kernelspec, a check that the kernel is this interpreter, an event for
each cell, and an error for `sys.exit`, a dead kernel and a timeout, which papermill saves as completed.
"""

import re
import sys

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.log import logger

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ENGINE = "book"
WHO = {"executable": "__import__('sys').executable", "prefix": "__import__('sys').prefix"}


class ChapterFailed(Exception):
    """A chapter did not run to its end: the cause in one line, and detail such as a traceback."""

    def __init__(self, cause: str, detail: str = ""):
        super().__init__(cause)
        self.cause = cause
        self.detail = ANSI.sub("", detail)


class Run:
    """How far one chapter's execution has come. `report` is called with each event."""

    def __init__(self, kernels_base, report):
        self.kernels_base = kernels_base
        self.report = report
        self.current = None
        self.executed = 0
        self.total = 0


def counted(cell) -> bool:
    """Whether a cell of the source is one that has to run."""
    tags = cell.get("metadata", {}).get("tags", [])
    if cell.get("cell_type") != "code" or not "".join(cell["source"]).strip():
        return False
    return "injected-parameters" not in tags and "skip-execution" not in tags


def where(number: int, cell) -> dict:
    """A cell's place: its number among the cells that run, its id and its first line of code."""
    lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
    return {"cell": number, "cell_id": cell.get("id", ""), "line": lines[0][:100] if lines else ""}


def check_interpreter(said: dict) -> None:
    """Refuse a kernel that is not this interpreter: the chapter would run with other packages."""
    for name, expected in (("executable", sys.executable), ("prefix", sys.prefix)):
        text = said.get(name, {}).get("data", {}).get("text/plain", "unknown")
        if text != repr(expected):
            raise ChapterFailed(f"wrong kernel: its sys.{name} is {text}, the runner's is {expected!r}")


def register(run: Run) -> str:
    """Register the engine for one run with papermill and return its name."""

    class BookEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls, nb_man, kernel_name, start_timeout=60, execution_timeout=None, **unused
        ):
            # Papermill writes and validates the whole notebook twice a cell. Before and after them is enough: it
            # does so however the cells end, and nobody reads the copy in between.
            save, nb_man.save = nb_man.save, lambda **_: None
            try:
                return BookClient(
                    nb_man,
                    run,
                    kernel_name=kernel_name,
                    timeout=execution_timeout,
                    startup_timeout=start_timeout,
                    record_timing=False,
                    log=logger,
                ).execute()
            finally:
                nb_man.save = save

    papermill_engines.register(ENGINE, BookEngine)
    return ENGINE


class BookClient(PapermillNotebookClient):
    """Papermill's client with the checks above."""

    def __init__(self, nb_man, run: Run, **options):
        super().__init__(nb_man, **options)
        self.run = run

    def create_kernel_manager(self):
        specs = KernelSpecManager(
            kernel_dirs=[str(self.run.kernels_base / "kernels")], ensure_native_kernel=False
        )
        self.km = AsyncKernelManager(kernel_name=self.kernel_name, kernel_spec_manager=specs)
        return self.km

    def papermill_execute_cells(self):
        try:
            self._assert_interpreter()
            self._execute_cells()
        except Exception:
            self.shutdown_kernel = "immediate"  # a busy or broken kernel gets no time to say goodbye
            raise

    def _assert_interpreter(self):
        answer = self.wait_for_reply(self.kc.execute("", silent=True, user_expressions=WHO))
        check_interpreter(answer["content"].get("user_expressions", {}))

    def _execute_cells(self):
        number = 0
        for index, cell in enumerate(self.nb.cells):
            if counted(cell):
                number += 1
                self.run.current = where(number, cell)
                self.run.report({"event": "cell", **self.run.current, "of": self.run.total})
            self.nb_man.cell_start(cell, index)
            try:
                self._execute_one(cell, index, number)
            finally:
                self.nb_man.cell_complete(self.nb.cells[index], cell_index=index)
            if counted(cell):
                self.run.executed += 1
        self.run.current = None

    def _execute_one(self, cell, index: int, number: int):
        try:
            self.execute_cell(cell, index)
        except CellTimeoutError:
            raise ChapterFailed(f"timeout: the cell ran longer than {self.timeout:g} s") from None
        except DeadKernelError:
            raise ChapterFailed(
                "the kernel died (killed, out of memory, or a crash in native code)"
            ) from None
        except CellExecutionError as error:
            if not any(output.output_type == "error" for output in cell.get("outputs", [])):
                raise ChapterFailed(f"{error.ename}: {error.evalue}", str(error)) from None
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise _failure(output, self.run.total - number)


def _failure(output, left: int) -> ChapterFailed:
    """Turn a cell's error output into its cause; no tag excuses it, and leaving early is no success."""
    if output.ename == "SystemExit":
        return ChapterFailed(
            f"sys.exit({output.evalue}) ended the chapter; {left} cells after it did not run"
        )
    message = f"{output.ename}: {output.evalue}".splitlines()[0]
    return ChapterFailed(ANSI.sub("", message), "\n".join(output.traceback))
