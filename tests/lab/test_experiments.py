"""The way of a number on a GPU: measured, validated, written into the run, read back, kept, shown as
recorded.
"""

from types import SimpleNamespace

import pytest
import torch

from kernels.lab import counters, experiments, records, timing
from kernels.lab.experiments import Experiment, Point, catalogue, indexing, sparse
from kernels.lab.records import place, run, store
from tests.lab.described import DEVICE


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setenv("BOOK_RUN_ID", "r1")
    monkeypatch.setattr(place, "recorded_runs", lambda: tmp_path / "data" / "runs")
    monkeypatch.setattr(store, "_current", {})
    return tmp_path


def lab(name="01-a"):
    return SimpleNamespace(on_gpu=True, profile="quick", run=None, name=name)


@pytest.fixture
def pretend_gpu(bench, monkeypatch):
    """Cases are built and checked on the CPU; only the clock and the device's description are invented."""
    monkeypatch.setattr(run, "describe_device", lambda: dict(DEVICE))
    tiny = {"sparse_mla_decode": sparse.build, "indexer_topk": indexing.build_topk}
    options = {"sparse_mla_decode": {"pool_tokens": 256}, "indexer_topk": {}}
    monkeypatch.setattr(
        experiments, "builder", lambda op: lambda point, device: tiny[op](point, "cpu", sets=2, **options[op])
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(timing, "device_l2_bytes", lambda: 0)
    ticks = iter(range(1, 10_000))
    monkeypatch.setattr(timing, "chain", lambda calls, samples: timing.summarise([float(next(ticks))] * 3))
    shape = {"heads": 4, "topk": 64, "tile_class": "sm120"}
    points = [
        Point("sparse_mla_decode", "mma", 1, **shape),
        Point("sparse_mla_decode", "flash_mla", 1, heads=4, topk=64),
        Point("indexer_topk", "torch", 1, topk=32, context=400, max_context=1024),
        Point("indexer_topk", "no_such_rung", 1, topk=32, context=400, max_context=1024),
    ]
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", Experiment("tiny", "does it work", lambda _: points))
    return bench


def test_from_measurement_to_record(pretend_gpu):
    first = lab()
    frame, evidence = experiments.results("tiny", first)
    assert list(frame["status"]) == ["ok", "skipped", "ok", "failed"]
    assert evidence.kind == "measured" and evidence.device == "NVIDIA H200"
    assert frame.loc[1, "reason"] and "no_such_rung" in frame.loc[3, "reason"]

    again, _ = experiments.results("tiny", lab("02-b"))
    assert list(again["median_us"].dropna()) == list(frame["median_us"].dropna()), "measured once a run"

    records.finish_run(first.run.folder, {"chapters": {"01-a": {"status": "ok", "seconds": 1.0}}})
    records.keep()
    shown, evidence = experiments.results("tiny", SimpleNamespace(on_gpu=False))
    assert evidence.kind == "recorded" and list(shown["status"]) == list(frame["status"])


def test_a_new_execution_measures_again(pretend_gpu, monkeypatch):
    before, _ = experiments.results("tiny", lab())
    monkeypatch.setenv("BOOK_RUN_ID", "r2")
    after, _ = experiments.results("tiny", lab())
    assert after["median_us"].max() > before["median_us"].max()


def test_out_of_memory_is_a_reason(pretend_gpu, monkeypatch):
    def full(point, device):
        raise torch.cuda.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(experiments, "builder", lambda op: full)
    rows = experiments.measure_points([Point("sparse_mla_decode", "mma", 1, timers=("chain", "cold"))])
    assert [row["reason"] for row in rows] == ["does not fit into the device's memory"] * 2


def test_a_registered_experiment_is_found(monkeypatch):
    monkeypatch.setattr(experiments, "_REGISTERED", {})
    experiments.register("decode", lambda profile: [], table="profile")
    assert "decode" in experiments.names()
    with pytest.raises(ValueError, match="table='speed'"):
        experiments.register("x", lambda profile: [], table="speed")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "point",
    [
        Point("sparse_mla_decode", "simt", 1, tile_class="sm120"),
        Point("sparse_mla_decode", "auto", 16, timers=("chain", "cold", "eager")),
        Point("sparse_mla_decode", "auto", 2, swa_tokens=128),
        Point("sparse_mla_decode", "auto", 2, topk=512, context=64),
        Point("sparse_mla_decode", "flash_mla", 4, timers=("chain", "cold")),
        Point("sparse_mla_decode", "flash_mla", 4, swa_tokens=128),
        Point("indexer_logits", "uncapped", 2, context=8192, max_context=32768),
        Point("indexer_logits", "capped", 2, context=8192, max_context=32768),
        Point("indexer_logits", "paged", 2, context=8192, max_context=32768),
        Point("indexer_logits", "deep_gemm", 2, context=8192, max_context=32768),
        Point("indexer_topk", "torch", 2, context=8192, max_context=32768),
        Point("indexer_topk", "radix", 2, context=8192, max_context=32768),
    ],
    ids=lambda point: f"{point.op}-{point.impl}-{point.swa_tokens}-{point.context}",
)
def test_points_on_a_gpu_are_right_and_timed(point):
    rows = experiments.measure_points([point], samples=7)
    peer = point.impl in ("flash_mla", "deep_gemm")
    for row in rows:
        assert row["status"] == "ok" or (peer and row["status"] == "skipped"), row["reason"]


@pytest.mark.gpu
def test_counters_on_a_gpu_are_read_or_say_why():
    rows = counters.read(
        [Point("sparse_mla_decode", impl, 4, tile_class="sm120") for impl in ("simt", "mma")]
    )
    assert all(row["status"] != "failed" for row in rows), rows[0]["reason"]
    if rows[0]["status"] == "ok":
        assert {"l2_bytes", "tensor_pipe_pct"} <= {row["metric"] for row in rows}
