"""Settings of every test: interpreted kernels by default, compiled ones under `-m gpu`."""

import os
import sys

import pytest

# Tracing lines doubles the interpreter's time. These modules repeat, with many more inputs, what others cover:
# coverage is off while they run, so that the whole suite stays within its minutes.
UNTRACED = (
    "sparse_mla/test_matrix.py",
    "sparse_mla/test_combine.py",
    "sparse_mla/test_properties.py",
    "sparse_mla/test_conventions.py",
    "indexer/test_topk.py",
    "indexer/test_properties.py",
    "indexer/test_logits.py",
    "decode_step/test_step.py",
    "decode_step/test_stages.py",
    "lab/test_chapters_split.py",
)
LONG = {
    -4: "book/test_pages.py",
    -3: "book/test_runner.py",
    -2: "lab/test_legality.py",
    -1: "sparse_mla/test_matrix.py",
    1: "book/test_whole_book.py",
}


def pytest_configure(config):
    # Before any kernel module is imported: Triton decides at decoration. `make test` must mean the same on
    # every machine, so a GPU counts only where it is asked for.
    if config.getoption("markexpr", "") != "gpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    from hypothesis import settings

    # The interpreter is slow and its first call slower; the same examples on every machine.
    settings.register_profile("book", deadline=None, derandomize=True, max_examples=25)
    settings.load_profile("book")


def _turn(item) -> int:
    """The order of the files, but what takes long comes first, most of all what renders the book.

    Whoever else needs the book comes last, so that two workers do not wait for it side by side.
    """
    path = item.path.as_posix()
    return next((turn for turn, ends in LONG.items() if path.endswith(ends)), 0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Stop tracing around a test that is not to be traced; pytest-cov's own mark leaves it on.

    More than one tracer can be running, and in a worker process of xdist two were.
    """
    stopped = []
    if item.get_closest_marker("untraced") and "coverage" in sys.modules:
        current = sys.modules["coverage"].Coverage.current
        while (tracer := current()) is not None:
            tracer.stop()
            stopped.append(tracer)
    yield
    for tracer in reversed(stopped):
        tracer.start()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.as_posix().endswith(UNTRACED):
            item.add_marker(pytest.mark.untraced)
    items.sort(key=_turn)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        reason = "kernels are interpreted in this run: make test-gpu"
    else:
        import torch

        if torch.cuda.is_available():
            return
        reason = "no CUDA device"
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason=reason))
