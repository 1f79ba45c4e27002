"""`python -m kernels.lab record`: keep a finished GPU run in data/runs."""

HELP = "copy a finished GPU run from the build folder to data/runs"


def add_arguments(parser) -> None:
    parser.add_argument("run_id", nargs="?", help="the newest run by default")
    parser.add_argument(
        "--partial", action="store_true", help="also keep a run whose chapters did not all end well"
    )


def run(arguments) -> int:
    from kernels.lab import records
    from kernels.lab.pages import readme
    from kernels.lab.records import place

    target = records.keep(arguments.run_id, partial=arguments.partial)
    record = records.Record(target, records.run.read_run(target))
    rows = record.table()
    counts = ", ".join(f"{count} {status}" for status, count in rows["status"].value_counts().items())
    print(f"recorded {target.relative_to(place.root()).as_posix()}: {len(rows)} rows ({counts})")
    if record.info["git_commit"] is None or record.info["git_dirty"]:
        print("note: the run names no clean commit; record it from a committed tree to make it reproducible")
    for name in readme.write():
        print(f"{name}: follows the new record")
    return 0
