"""`python -m kernels.lab tune`: measure the planner's table again on the GPU at hand."""

import json
from pathlib import Path

HELP = "time the staged rung's tiles and splits on this GPU and rewrite the planner's table"


def add_arguments(parser) -> None:
    parser.add_argument("--heads", type=int, nargs="+", default=None)
    parser.add_argument("--candidates", type=int, nargs="+", default=None)
    parser.add_argument("--batches", type=int, nargs="+", default=None)
    parser.add_argument("--device-classes", nargs="+", choices=("sm120", "sm90"), default=None)
    parser.add_argument(
        "--tile",
        type=int,
        nargs=7,
        metavar=("HEADS", "TOKENS", "WARPS", "BUFFERS", "WGMMA", "PRODUCERS", "PAIR"),
        help="time this tile only, beside what the table has",
    )
    parser.add_argument(
        "--output", type=Path, default=None, help="where to write the table; the package's by default"
    )
    parser.add_argument("--timings", type=Path, default=None, help="also write every timing, as JSON lines")


def run(arguments) -> int:
    import torch

    from kernels.lab import tune

    if not torch.cuda.is_available():
        print("tune: needs a CUDA device")
        return 2
    wanted = {
        name: tuple(value)
        for name in ("heads", "candidates", "batches", "device_classes")
        if (value := getattr(arguments, name))
    }
    if arguments.tile:
        *sizes, wgmma, producers, pair = arguments.tile
        wanted["tiles"] = [(*sizes, bool(wgmma), producers, bool(pair))]
    rows, timings = tune.tune(**wanted)
    tune.write(rows, arguments.output or tune.TABLE)
    if arguments.timings:
        arguments.timings.write_text("".join(json.dumps(row) + "\n" for row in timings))
    return 0
