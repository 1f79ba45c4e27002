"""`python -m kernels.lab.records`: what `make record` calls."""

import sys

from kernels.lab.__main__ import main

sys.exit(main(["record", *sys.argv[1:]]))
