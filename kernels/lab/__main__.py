"""`python -m kernels.lab <command>`: the instruments from a shell; see `kernels.lab.commands`."""

import argparse
import importlib
import os
import pkgutil
import sys

from kernels.lab import commands


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels.lab", description="Instruments that study the kernels."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    modules = {}
    for info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda i: i.name):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        name = info.name.replace("_", "-")
        modules[name] = module
        module.add_arguments(subparsers.add_parser(name, help=module.HELP, description=module.HELP))
    chosen = parser.parse_args(arguments)
    try:
        return modules[chosen.command].run(chosen)
    except (ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


if __name__ == "__main__":
    sys.exit(main())
