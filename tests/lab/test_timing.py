"""The clock's arithmetic, and that no time is kept without a right result or without a GPU."""

import builtins
from types import SimpleNamespace

import pytest
import torch

from kernels.lab import nvml, timing


def test_percentiles_of_a_known_sample():
    result = timing.summarise([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
    assert (result.median_us, result.p20_us, result.p80_us, result.samples) == (3.5, 2.0, 5.0, 6)


def test_no_samples_is_an_error():
    with pytest.raises(ValueError, match="samples_us is empty"):
        timing.summarise([])


@pytest.mark.parametrize(
    ("per_call", "l2"), [(300_000, 60 << 20), (100_000_000, 60 << 20), (1_000_000, 128 << 20)]
)
def test_rotation_exceeds_the_l2(per_call, l2):
    sets = timing.sets_needed(per_call, l2)
    assert sets >= timing.MIN_SETS
    assert sets * per_call > l2
    timing.assert_rotation(per_call, sets, l2)


def test_rotation_that_cannot_exceed_the_l2_is_refused():
    with pytest.raises(ValueError, match="bytes_per_call=1,000"):
        timing.sets_needed(1000, 60 << 20)
    with pytest.raises(AssertionError, match="fit into the L2"):
        timing.assert_rotation(1000, 10, 60 << 20)


def _case(error=0.0, problem=None):
    return timing.Case({"op": "sparse_mla_decode"}, [lambda: None], lambda: (error, problem), 1e-3, 1 << 20)


def test_without_cuda_a_case_is_skipped_and_never_timed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (row,) = timing.measure(_case())
    assert row["status"] == "skipped" and row["reason"] == "no CUDA device" and "median_us" not in row


@pytest.mark.parametrize(
    ("error", "problem", "words"),
    [(0.5, None, "exceeds"), (float("nan"), "holds NaN", "NaN"), (0.0, "LSE is off by 1", "LSE")],
)
def test_a_wrong_result_keeps_no_time(monkeypatch, error, problem, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(timing, "chain", lambda *_: pytest.fail("timed a wrong result"))
    rows = timing.measure(_case(error, problem), timers=("chain", "cold"))
    assert [row["timer"] for row in rows] == ["chain", "cold"]
    assert all(row["status"] == "wrong" and words in row["reason"] and "median_us" not in row for row in rows)


def test_a_right_result_is_timed_and_keeps_its_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(timing, "device_l2_bytes", lambda: 1024)
    monkeypatch.setattr(timing, "chain", lambda calls, samples: timing.summarise([2.0, 1.0, 3.0]))
    (row,) = timing.measure(_case(error=1e-4))
    assert (row["status"], row["median_us"], row["rel_error"], row["tolerance"]) == ("ok", 2.0, 1e-4, 1e-3)


def test_device_state_without_nvml_says_why(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    state = nvml.device_state()
    assert state["reason"] == "nvidia-ml-py is not installed" and state["power_w"] is None


@pytest.mark.parametrize(
    ("count", "us", "captured"), [(4, 10.0, [4, 32]), (14, 10.0, [14, 42]), (40, 1.0, [40]), (4, 2e3, [4])]
)
def test_a_chain_of_few_calls_is_repeated_unless_they_are_slow(monkeypatch, count, us, captured):
    """A replay takes its own 4 us: of four calls, that would be a microsecond each."""
    seen, calls = [], [object() for _ in range(count)]

    def capture(given):
        seen.append(list(given))
        return SimpleNamespace(replay=lambda: 4.0 + us * len(given))

    monkeypatch.setattr(timing, "capture", capture)
    monkeypatch.setattr(timing, "_timed", lambda replay: replay())
    found = timing.chain(calls).median_us
    assert [len(one) for one in seen] == captured
    assert all(one == calls * (len(one) // count) for one in seen), "in the same order"
    assert found == pytest.approx(us + 4.0 / captured[-1])


@pytest.mark.gpu
def test_chain_cold_and_pairs_on_a_gpu():
    x = torch.zeros(1 << 22, device="cuda")
    calls = [lambda: x.add_(1) for _ in range(8)]
    assert 0 < timing.chain(calls).median_us < 1e4
    assert timing.cold(calls[0]).median_us > 0
    pair = timing.paired(calls, calls)
    assert 0.8 < pair.ratio.median_us < 1.25
    assert timing.device_state()["temperature_c"] or timing.device_state()["reason"]
