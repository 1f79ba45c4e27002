"""`python -m kernels.lab readme`: the README's table and picture from the recorded runs."""

HELP = "bring the README's speed table and picture up to date with the recorded runs"


def add_arguments(parser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where something would")


def run(arguments) -> int:
    from kernels.lab.pages import readme

    if arguments.check:
        outdated = readme.outdated()
        print("\n".join(f"{name}: out of date" for name in outdated) or "README.md: up to date")
        return 1 if outdated else 0
    changed = readme.write()
    print("\n".join(f"{name}: updated" for name in changed) or "README.md: already up to date")
    return 0
