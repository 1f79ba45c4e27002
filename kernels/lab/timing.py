"""The laboratory's clock: how long one call takes on a GPU, and only when its result is right.

chain: many calls on disjoint data in one CUDA graph, time divided by their number; what a decode step sees.
cold: one call per graph, the L2 flushed before it, outside the timed region. eager: launches from Python
    included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.lab.nvml import device_state

MIN_SETS, MAX_SETS = 4, 1024
OVER_L2 = 1.25
MIN_SAMPLES = 7
SLOW_SAMPLES = 3
# A replay takes about 4 us to start and to end, whatever is in it: with few calls, that would be theirs
CHAIN_CALLS = 32
LONG_REPLAY_US = 5e3

__all__ = [
    "Case",
    "Pair",
    "Timing",
    "assert_rotation",
    "chain",
    "cold",
    "device_state",
    "eager",
    "measure",
    "paired",
    "sets_needed",
    "summarise",
]

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: median, 20th and 80th percentile, and every sample."""

    median_us: float
    p20_us: float
    p80_us: float
    samples_us: tuple[float, ...]

    @property
    def samples(self) -> int:
        """How many samples the median is taken over."""
        return len(self.samples_us)


def summarise(samples_us: Sequence[float]) -> Timing:
    """Median and percentiles of samples in microseconds. Raises ValueError when there is none."""
    if not samples_us:
        raise ValueError("samples_us is empty; accepted: at least one sample")
    ordered = sorted(samples_us)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return Timing(at(0.5), at(0.2), at(0.8), tuple(samples_us))


def sets_needed(bytes_per_call: int, l2_bytes: int, limit: int = MAX_SETS) -> int:
    """How many disjoint input sets a chain must rotate through so that no call finds its data in the L2.

    bytes_per_call: bytes that one call touches. l2_bytes: of the device. Raises ValueError when `limit` sets
    would still fit: the caller must give each call more data.
    """
    if bytes_per_call < 1 or l2_bytes < 0:
        raise ValueError(f"bytes_per_call={bytes_per_call}, l2_bytes={l2_bytes}; accepted: positive numbers")
    sets = max(MIN_SETS, -(-int(OVER_L2 * l2_bytes) // bytes_per_call))
    if sets > limit:
        raise ValueError(
            f"bytes_per_call={bytes_per_call:,} needs {sets} sets to exceed an L2 of {l2_bytes:,} bytes; "
            f"accepted: at most {limit}"
        )
    return sets


def assert_rotation(bytes_per_call: int, sets: int, l2_bytes: int) -> None:
    """Raise AssertionError unless the rotated inputs exceed the L2."""
    total = bytes_per_call * sets
    assert total > l2_bytes, f"{sets} sets of {bytes_per_call:,} bytes fit into the L2 of {l2_bytes:,} bytes"


def capture(calls: Sequence[Call]):
    """A CUDA graph of the calls in order; every call runs once before, so that nothing compiles in the
    capture.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
        calls[-1]()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _events():
    import torch

    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _timed(replay: Call) -> float:
    begin, end = _events()
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def chain(calls: Sequence[Call], samples: int = 21, budget_s: float = 0.4) -> Timing:
    """Time of one call in a chain: all calls in one CUDA graph, replayed `samples` times.

    calls: closures over disjoint inputs, enough of them to exceed the L2 (`sets_needed`). Fewer than 32 are called
    again in the same order, as the replays do anyway, unless a replay takes 5 ms. budget_s: seconds that the replays
    may take; slow calls get fewer samples, at least 7, or 3 where one replay of all the calls takes longer than
    that: it is an average already.
    """
    graph = capture(calls)
    graph.replay()
    once_s = _timed(graph.replay) / 1e6
    rounds = min(-(-CHAIN_CALLS // len(calls)), int(LONG_REPLAY_US / (once_s * 1e6)))
    if rounds > 1:
        calls = list(calls) * rounds
        graph = capture(calls)
        graph.replay()
        once_s = _timed(graph.replay) / 1e6
    least = MIN_SAMPLES if once_s <= budget_s else SLOW_SAMPLES
    samples = max(least, min(samples, int(budget_s / max(once_s, 1e-9))))
    return summarise([_timed(graph.replay) / len(calls) for _ in range(samples)])


def _flusher(l2_bytes: int) -> Call:
    import torch

    scratch = torch.empty(max(2 * l2_bytes, 64 << 20), dtype=torch.uint8, device="cuda")
    return scratch.zero_


def cold(call: Call, samples: int = 21, l2_bytes: int | None = None) -> Timing:
    """Time of one call with nothing in the L2. The flush lies before the first event, so it is not timed.

    l2_bytes: of the device, asked for when None.
    """
    flush = _flusher(l2_bytes if l2_bytes is not None else device_l2_bytes())
    graph = capture([call])
    measured: list[float] = []
    for _ in range(samples + 2):
        flush()  # long enough that the replay is queued before the flush ends
        measured.append(_timed(graph.replay))
    return summarise(measured[2:])


def eager(calls: Sequence[Call], samples: int = 21) -> Timing:
    """Time of one call launched from Python, without a graph; at small batch this is Python's own time."""
    import torch

    for call in calls[:2]:
        call()
    torch.cuda.synchronize()

    def replay() -> None:
        for call in calls:
            call()

    return summarise([_timed(replay) / len(calls) for _ in range(samples)])


@dataclass(frozen=True)
class Pair:
    """Two timings taken in turns, and the ratio a/b within each turn: drift of the clocks cancels."""

    a: Timing
    b: Timing
    ratio: Timing = field(repr=False)


def paired(a: Sequence[Call], b: Sequence[Call], samples: int = 21) -> Pair:
    """Time two chains in turns (A B, B A, A B, …) in one run.

    a, b: the calls of each side. `ratio` holds a's time over b's, per turn, in its *_us fields.
    """
    graphs = {"a": capture(a), "b": capture(b)}
    counts = {"a": len(a), "b": len(b)}
    times: dict[str, list[float]] = {"a": [], "b": []}
    for graph in graphs.values():
        graph.replay()
    for turn in range(samples):
        for side in ("ab", "ba")[turn % 2]:
            times[side].append(_timed(graphs[side].replay) / counts[side])
    ratio = [first / second for first, second in zip(times["a"], times["b"], strict=True)]
    return Pair(summarise(times["a"]), summarise(times["b"]), summarise(ratio))


def device_l2_bytes() -> int:
    """The L2 of the current CUDA device in bytes."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


@dataclass
class Case:
    """One implementation on one shape, ready to be checked and timed.

    row: the columns of measurements.csv that describe it. calls: closures over disjoint inputs; calls[0] is
    the one that is checked. check: runs calls[0]'s inputs against the reference, returns (relative error,
    problem or None). tolerance: for the relative error. bytes_per_call: what one call reads, for the
    rotation; None where the inputs are in the L2 in real life, too (a top-k right after its logits).
    """

    row: dict[str, Any]
    calls: Sequence[Call]
    check: Callable[[], tuple[float, str | None]]
    tolerance: float
    bytes_per_call: int | None


def measure(case: Case, timers: Sequence[str] = ("chain",), samples: int = 21) -> list[dict[str, Any]]:
    """Check a case and time it: one row per timer.

    timers: of 'chain', 'cold', 'eager'. A result outside its tolerance gives rows with status 'wrong' and no
    time; a machine without CUDA gives status 'skipped', because an interpreter's wall time says nothing about
    a kernel.
    """
    import torch

    def rows(status: str, reason: str, error: float | None = None) -> list[dict[str, Any]]:
        tail = {"rel_error": error, "tolerance": case.tolerance, "status": status, "reason": reason}
        return [{**case.row, "timer": timer, **tail} for timer in timers]

    if not torch.cuda.is_available():
        return rows("skipped", "no CUDA device")
    error, problem = case.check()
    if not error <= case.tolerance:  # also catches NaN
        return rows(
            "wrong", problem or f"relative error {error:.3g} exceeds {case.tolerance:.3g}", _finite(error)
        )
    if problem:
        return rows("wrong", problem, error)
    done = []
    for timer in timers:
        if timer == "chain":
            if case.bytes_per_call is not None:
                assert_rotation(case.bytes_per_call, len(case.calls), device_l2_bytes())
            timing = chain(case.calls, samples)
        elif timer == "cold":
            timing = cold(case.calls[0], samples)
        elif timer == "eager":
            timing = eager(case.calls[: min(len(case.calls), 16)], samples)
        else:
            raise ValueError(f"timer={timer!r} is unknown; accepted: chain, cold, eager")
        done.append({**case.row, "timer": timer, **ok(timing, error, case.tolerance)})
    return done


def ok(timing: Timing, rel_error: float, tolerance: float) -> dict[str, Any]:
    """The columns of a row whose result is right."""
    return {
        "samples": timing.samples,
        "median_us": timing.median_us,
        "p20_us": timing.p20_us,
        "p80_us": timing.p80_us,
        "rel_error": rel_error,
        "tolerance": tolerance,
        "status": "ok",
        "reason": "",
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
