"""Kernels that overlap: a profile counts the time in which two of a stream are running once."""

from kernels.lab import profile


def kernel(correlation, name, begin, duration, stream=7):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": duration, "tid": 7,
            "args": {"correlation": correlation, "stream": stream}}  # fmt: skip


def launch(correlation):
    return {"ph": "X", "cat": "cuda_driver", "name": "launch", "ts": correlation, "dur": 1, "tid": 1,
            "args": {"correlation": correlation}}  # fmt: skip


def test_a_combine_that_waits_for_its_attention_counts_what_it_adds():
    """It started with the attention kernel and ended 2 microseconds after it."""
    kernels = [kernel(2, "combine_kernel", 101.0, 58.0), kernel(1, "split_k_kernel", 100.0, 57.0)]
    rows = profile.rows_of_trace([launch(1), launch(2), *kernels], "step:", forced_fp32=False)
    assert {row["kernel"]: row["gpu_us"] for row in rows} == {"split_k_kernel": 57.0, "combine_kernel": 2.0}


def test_what_runs_after_the_other_or_beside_it_keeps_its_time():
    kernels = [
        kernel(1, "a", 0.0, 10.0),
        kernel(2, "b", 10.0, 5.0),
        kernel(3, "inside", 11.0, 1.0),
        kernel(4, "c", 20.0, 5.0),
        kernel(5, "other stream", 21.0, 3.0, stream=8),
    ]
    assert profile.own_times(kernels) == [10.0, 5.0, 0.0, 5.0, 3.0]
