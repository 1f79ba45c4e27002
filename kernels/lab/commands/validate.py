"""`python -m kernels.lab validate`: fit the launch model on half of the measured points, judge it on the rest."""

from datetime import UTC, datetime
from pathlib import Path

HELP = "fit the launch model on half of the recorded points, judge it on the others, and write both tables"


def add_arguments(parser) -> None:
    parser.add_argument("--device", default="h200", help="key in data/devices.csv of the card that measured")
    parser.add_argument(
        "--rows", type=Path, nargs="+", default=None, help="measured rows elsewhere: .csv or .jsonl"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the judgement, write nothing")


def run(arguments) -> int:
    from kernels.lab import predict_fit, validation

    if arguments.rows:
        rows = [row for path in arguments.rows for row in validation.read_rows(path)]
        utc, run_id = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), ""
    else:
        rows, info = validation.recorded_rows(arguments.device)
        utc, run_id = info["utc"], info["run_id"]
    found = predict_fit.fit(rows, arguments.device)
    unseen = predict_fit.unseen(rows, arguments.device, found.parameters)
    table = validation.table(found, unseen, arguments.device, utc, run_id)
    for line in validation.summary(table):
        print(
            f"{line['split']:8} {line['impl']:8} {line['count']:4} points  median {line['median_error']:6.1%}  "
            f"90 % {line['p90_error']:6.1%}  Spearman {line['spearman']:.3f}"
        )
    free = predict_fit.free_parameters()
    for name, (low, high) in free.items():
        value = found.parameters[name]
        edge = " (at its bound)" if min(value / low, high / value) < 1.001 else ""
        print(f"{name} = {value:.4g}{edge}")
    print("meets the goal" if found.held_out.meets() else "misses the goal")
    if not arguments.dry_run:
        validation.write(table)
        validation.write_parameters({name: found.parameters[name] for name in free})
    return 0
