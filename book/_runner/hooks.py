"""Where the rest of the project plugs into the runner; each hook may be absent.

kernels.lab.pages.WRITERS: functions `writer(staged_dir, manifest)` that write pages computed at build time.
kernels.lab.records.finish_run(run_dir, manifest): completes a GPU run's record once its chapters have ended.

Both run in another process: they may import torch, and must see the kernels as they are now.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from .book import Book, BookError

BOOK_FOLDER = Path(__file__).resolve().parents[1]
START = (
    f"import sys; sys.path.insert(0, {str(BOOK_FOLDER)!r}); from _runner.hooks import main; sys.exit(main())"
)


def write_pages(book: Book, staged: Path, manifest: dict) -> list[str]:
    """Call every page writer; returns their names. Raises BookError with the writer's name when one fails."""
    return _call(book, "pages", staged, manifest)


def finish_run(book: Book, run_dir: Path, manifest: dict) -> list[str]:
    """Complete the record of this run, where the chapters have written one."""
    return _call(book, "finish_run", run_dir, manifest) if run_dir.is_dir() else []


def _call(book: Book, hook: str, folder: Path, manifest: dict) -> list[str]:
    ahead = [str(book.root), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in ahead if path),
        "BOOK_BUILD_DIR": str(book.build),
        "MPLBACKEND": "agg",
    }
    result = subprocess.run(
        [sys.executable, "-c", START],
        input=json.dumps({"hook": hook, "folder": str(folder), "manifest": manifest}),
        capture_output=True,
        text=True,
        cwd=book.root,
        env=environment,
    )
    if result.returncode != 0:
        raise BookError(f"the hook {hook!r} failed:\n{result.stderr.strip()}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def main() -> int:
    """The other process's side: run the hook, print the names of what was called."""
    job = json.load(sys.stdin)
    folder, manifest = Path(job["folder"]), job["manifest"]
    called = []
    if job["hook"] == "pages":
        module = _optional("kernels.lab.pages")
        functions = [(writer, (folder, manifest)) for writer in getattr(module, "WRITERS", [])]
    else:
        module = _optional("kernels.lab.records")
        function = getattr(module, "finish_run", None)
        functions = [(function, (folder, manifest))] if function else []
    for function, arguments in functions:
        name = f"{function.__module__}.{function.__qualname__}"
        try:
            function(*arguments)
        except Exception:
            print(f"{name} raised:", file=sys.stderr)
            raise
        called.append(name)
    print(json.dumps(called))
    return 0


def _optional(name: str):
    """Import a module that may be absent; an error inside a present one is not hidden."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if importlib.util.find_spec(".".join(parts[:end])) is None:
            return None
    return importlib.import_module(name)
