#!/usr/bin/env python3
"""Run the book: every chapter through papermill, in order, then the site.

    python book/run.py [--device auto|cpu|cuda] [--profile quick|full] [--only 03] [--force]

Works from any directory, and without any set-up where the packages are importable: the chapters' kernels find
the `kernels` package through PYTHONPATH. What ran, with which result, is in _build/manifest.json.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _runner.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
