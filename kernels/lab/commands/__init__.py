"""Subcommands of `python -m kernels.lab`: every module here is one, found by its name.

A module `name.py` gives HELP (one line), `add_arguments(parser)` and `run(arguments) -> int`, the exit
status.
"""
