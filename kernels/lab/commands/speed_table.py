"""`python -m kernels.lab speed-table`: the README's table from the recorded run."""

HELP = "print the README's speed table, or write it into README.md"


def add_arguments(parser) -> None:
    parser.add_argument("--write", action="store_true", help="bring README.md up to date")


def run(arguments) -> int:
    from kernels.lab.pages import speed_table

    if not arguments.write:
        print(speed_table.block())
        return 0
    print(
        "README.md: updated" if speed_table.write() else "README.md: already up to date, or it has no markers"
    )
    return 0
