"""`python -m kernels.lab measure`: experiments without the notebooks, into a run that the book then reads.

With the same BOOK_RUN_ID, `python book/run.py` on the same machine finds what was measured here and measures only
the rest: a run that is cut off keeps its finished experiments.
"""

import time
from types import SimpleNamespace

HELP = "measure named experiments on this GPU into a run of the build folder"
# Chapters bring experiments of their own
OWN = ("overlap", "per_head_split", "batch_invariance")


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="experiments, in this order; all when none is named")
    parser.add_argument("--profile", choices=("quick", "full"), default="quick")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no experiment after this time"
    )
    parser.add_argument(
        "--precompile", action="store_true", help="first compile in parallel what the experiments launch"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure also what the run has already, such as a decode step that was cut short",
    )


def run(arguments) -> int:
    import importlib

    import torch

    if not torch.cuda.is_available():
        print("measure: needs a CUDA device")
        return 2
    from kernels.lab import counters, experiments

    for module in OWN:
        importlib.import_module(f"kernels.lab.chapters.{module}")
    known = [*experiments.names(), *counters.EXPERIMENTS]
    names = arguments.names or known
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"measure: no experiment is called {', '.join(unknown)}; known are {', '.join(known)}")
        return 2
    if arguments.precompile:
        from kernels.lab import precompile

        precompile.run(names, arguments.profile)
    lab = SimpleNamespace(on_gpu=True, profile=arguments.profile, run=None, name="measure")
    begun, failed = time.perf_counter(), 0
    for name in names:
        if time.perf_counter() - begun > arguments.seconds:
            print(f"{name}: not started, the time is over")
            continue
        started = time.perf_counter()
        try:
            if name in counters.EXPERIMENTS:
                rows, _ = counters.results(name, lab)
            else:
                rows, _ = experiments.results(name, lab, again=arguments.again)
        except Exception as error:  # the other experiments still run
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            failed += 1
            continue
        status = ", ".join(f"{count} {what}" for what, count in rows["status"].value_counts().items())
        print(f"{name}: {time.perf_counter() - started:.1f} s, {status}", flush=True)
    return 1 if failed else 0
