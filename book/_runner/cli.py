"""The command line of book/run.py: its options, and one run at a time in a build folder."""

import argparse
import fcntl
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from . import book as books
from . import kernelspec, pdf
from .progress import link
from .session import Options, Session

ROOT = Path(__file__).resolve().parents[2]


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="book/run.py", description="Run every chapter, then render the site."
    )
    add = options.add_argument
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes a GPU if there is one")
    add("--profile", choices=("quick", "full"), default="quick", help="how much a chapter measures")
    add("--only", action="append", default=[], metavar="03", help="the chapters whose name starts like this")
    add("--force", action="store_true", help="execute unchanged chapters, too")
    add("--no-site", action="store_true", help="execute chapters, render nothing")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds per cell (600)")
    add("--jobs", type=int, metavar="N", help="chapters at a time (2 on a CPU; 1 on a GPU that is measured)")
    add("--root", type=Path, default=ROOT, help="the folder that holds _toc.yml and book/")
    add("--build", type=Path, help="the build folder (ROOT/_build)")
    add("--pdf", action="store_true", help="print the rendered book as one PDF, execute nothing")
    add("--kernelspec", action="store_true", help="print a JUPYTER_PATH whose python3 is this interpreter")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the book. Exit status: 0 all well, 1 a chapter or the site failed, 2 it cannot be run as asked."""
    asked = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if asked.timeout <= 0 or (asked.jobs is not None and asked.jobs < 1):
            raise books.BookError("--timeout and --jobs take a number above 0")
        book = books.load(asked.root.resolve(), asked.build.resolve() if asked.build else None)
        if asked.kernelspec:
            print(kernelspec.install(book.build))
            return 0
        with _alone(book.build):
            if asked.pdf:
                print(link(pdf.make(book)))
                return 0
            options = Options(
                device=asked.device,
                profile=asked.profile,
                only=tuple(asked.only),
                force=asked.force,
                site=not asked.no_site,
                timeout=asked.timeout,
                jobs=asked.jobs,
            )
            return Session(book, options).run()
    except books.BookError as error:
        print(f"book/run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("book/run.py: interrupted; the last good site is unchanged", file=sys.stderr)
        return 130


@contextmanager
def _alone(build: Path):
    """Hold the build folder's lock; the system frees it when the process ends, however it ends."""
    build.mkdir(parents=True, exist_ok=True)
    with open(build / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise books.BookError(f"another run uses {build}; wait for it to end") from None
        yield
