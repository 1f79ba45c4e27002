"""Profiles: kernels find their group in a trace, launches are counted, rows keep the record's rules."""

import pytest
import torch

from kernels import decode_step
from kernels.decode_step import memory
from kernels.lab import launch_count, profile, timing
from kernels.lab.experiments import decode_step as experiment
from kernels.lab.records import schema


def launch(correlation, ts, tid=1, category="cuda_runtime"):
    return {"ph": "X", "cat": category, "name": "launch", "ts": ts, "dur": 1, "tid": tid,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(correlation, name, dur):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 0, "dur": dur, "tid": 7,
            "args": {"correlation": correlation}}  # fmt: skip


def annotation(name, ts, dur, tid=1):
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "tid": tid}


TRACE = [
    annotation("step:attention", 0, 20),
    annotation("step:combine", 10, 5),
    annotation("ProfilerStep#0", 0, 1000),
    launch(1, 3, category="cuda_driver"),
    kernel(1, "split_k_kernel", 40.0),
    launch(2, 16, category="cuda_driver"),
    kernel(2, "combine_kernel", 10.0),
    annotation("step:indexer", 30, 30),
    launch(3, 31),
    kernel(3, "void at::native::index_kernel<4>(int)", 5.0),
    launch(4, 40),
    kernel(4, "ampere_sgemm_128x64_tn", 20.0),
    launch(5, 70),
    kernel(5, "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)", 15.0),
    launch(6, 35, tid=2),
    kernel(6, "void at::native::vectorized_elementwise_kernel<4, X>(int)", 5.0),
    annotation("step:gemm", 80, 10),
    launch(7, 81),
    kernel(7, "nvjet_sm90_hsh_64x8_TNT", 5.0),
    {"ph": "M", "name": "process_name", "args": {"name": "x"}},
]


def test_a_kernel_belongs_to_the_range_it_was_launched_in():
    rows = profile.rows_of_trace(TRACE, "step:", forced_fp32=True)
    found = {(row["group"], row["kernel"]): (row["launches"], row["gpu_us"]) for row in rows}
    assert found == {
        ("attention", "split_k_kernel"): (1, 40.0),
        ("combine", "combine_kernel"): (1, 10.0),
        ("indexer", "index_kernel"): (1, 5.0),
        ("gemm_fp32", "indexer: ampere_sgemm_128x64_tn"): (1, 20.0),
        ("glue", "vectorized_elementwise_kernel"): (2, 20.0),
        ("gemm", "nvjet_sm90_hsh_64x8_TNT"): (1, 5.0),
    }
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert rows[0]["kernel"] == "split_k_kernel", "the longest first"
    assert profile.indexer_share(rows) == pytest.approx(0.25)
    assert list(profile.by_group(rows).index) == [
        "attention",
        "combine",
        "indexer",
        "gemm_fp32",
        "gemm",
        "glue",
    ]
    text = profile.text_table(rows)
    assert "attention" in text and "40.0%" in text and "all" in text


def test_the_indexers_product_is_fp32_only_while_it_is_forced():
    rows = profile.rows_of_trace(TRACE, "step:", forced_fp32=False)
    assert "gemm_fp32" not in {row["group"] for row in rows}


def test_a_trace_without_kernels_is_an_error():
    with pytest.raises(RuntimeError, match="saw no kernel"):
        profile.rows_of_trace([annotation("step:gemm", 0, 1)], "step:", True)
    lost = [event for event in TRACE if event.get("cat") not in profile.LAUNCH_CATEGORIES]
    with pytest.raises(RuntimeError, match="has its launch"):
        profile.rows_of_trace(lost, "step:", True)


@pytest.fixture(scope="module")
def small():
    return decode_step.build("baseline", batch=1, context=256, max_context=512, device="cpu")


def counts(step, ratios=None):
    return profile.by_group(launch_count.counted(step, ratios))["launches"]


def test_launches_are_counted_by_layers(small):
    own, whole = counts(small), counts(small, decode_step.flash().ratios)
    assert own["attention"] == 3 and whole["attention"] == 43
    twice = counts(small, (4, 4, 128, 0))
    once = counts(small, (4, 128, 0))
    assert twice["indexer"] == 2 * once["indexer"] and twice["glue"] > once["glue"]
    assert whole["gemm_fp32"] == 43 * 3 + 21 + 1, (
        "two hyper-connections and a gate a layer, index heads, the head"
    )


def test_a_count_is_of_this_step(small):
    before = counts(small)
    after = counts(small.at_stage("fused_glue"))
    assert "combine" not in before and after["combine"] == 3
    assert after["glue"] < before["glue"] / 3
    assert after["topk"] < before["topk"]
    with pytest.raises(ValueError, match="layers of kind c4"):
        counts(decode_step.build(batch=1, context=256, device="cpu", shapes=decode_step.tiny(1)), (4,))


@pytest.fixture
def clock(monkeypatch):
    """Time and memory of a GPU that is not there; everything else is real."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(100e9))
    monkeypatch.setattr(experiment, "time_step", lambda step: timing.summarise([1000.0, 2000.0, 3000.0]))
    rows = profile.rows_of_trace(TRACE, "step:", True)
    monkeypatch.setattr(profile, "measured", lambda step: rows)


def valid(rows, table):
    frame = schema.frame([row | {"run_id": "r", "experiment": "decode_step"} for row in rows], table)
    return schema.validate(frame, table)


def test_rows_of_the_experiment_keep_the_schema(clock):
    points = [
        experiment.Shape(2, 256, 512, ("baseline", "split_k")),
        experiment.Shape(1, 256, 512, ("indexer_cap",), profiled=False),
    ]
    found = experiment.measure_shapes(points, device="cpu", model=decode_step.tiny(2))
    times, parts = valid(found.times, "measurements"), valid(found.profile, "profile")
    assert list(times["stage"]) == ["baseline", "split_k", "indexer_cap"]
    assert list(times["status"]) == ["ok"] * 3, times["reason"].tolist()
    assert list(times["tokens_per_s"]) == [1000.0, 1000.0, 500.0]
    assert set(parts["stage"]) == {"baseline", "split_k"} and set(parts["batch"]) == {2}


def test_a_step_that_does_not_fit_is_a_row(clock, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 << 20)
    found = experiment.measure_shapes(
        [experiment.Shape(1, 256, 512, ("baseline",))], device="cpu", model=decode_step.tiny(1)
    )
    row = valid(found.times, "measurements").iloc[0]
    assert row["status"] == "skipped" and "GB" in row["reason"] and "baseline" in row["reason"]
    assert valid(found.profile, "profile").iloc[0]["status"] == "skipped"


def test_a_wrong_stage_has_no_time(clock, monkeypatch):
    from kernels.decode_step import attention

    right = attention.sparse_mla_decode

    def wrong(*arguments, impl, **others):
        out, lse = right(*arguments, impl=impl, **others)
        return (out * 1.5 if impl == "mma" else out), lse

    monkeypatch.setattr(attention, "sparse_mla_decode", wrong)
    shape = experiment.Shape(1, 256, 512, ("baseline", "mma"), profiled=False)
    found = experiment.measure_shapes([shape], device="cpu", model=decode_step.tiny(2))
    frame = valid(found.times, "measurements")
    assert list(frame["status"]) == ["ok", "wrong"] and "attention" in frame.loc[1, "reason"]


def test_a_stage_that_fails_says_why(clock, monkeypatch):
    def refuse(step):
        raise decode_step.CaptureError(f"stage {step.stage.name}: the CUDA graph could not be captured: no")

    monkeypatch.setattr(experiment, "time_step", refuse)
    shape = experiment.Shape(1, 256, 512, ("baseline",))
    found = experiment.measure_shapes([shape], device="cpu", model=decode_step.tiny(1))
    row = valid(found.times, "measurements").iloc[0]
    assert row["status"] == "failed" and "could not be captured" in row["reason"]
    assert found.profile[0]["status"] == "failed"


def test_the_points_cover_batches_and_contexts():
    full = experiment.shapes("full")
    asked = {(batch, limit) for batch in (1, 4, 16, 32, 64) for limit in (131072, 1048576)}
    assert asked <= {(shape.batch, shape.max_context) for shape in full if shape.stages is None}
    assert any(shape.max_context == shape.context == 8192 for shape in full)
    assert [shape.batch for shape in experiment.shapes("quick")] == [1, 16]


def test_both_experiments_are_registered():
    from kernels.lab import experiments

    assert {"decode_step", "decode_step_profile"} <= set(experiments.names())


def test_the_command_counts_on_a_cpu(capsys):
    from kernels.lab.__main__ import main

    arguments = [
        "step",
        "--stage",
        "split_k",
        "--batch",
        "16",
        "--context",
        "8192",
        "--max-context",
        "1048576",
    ]
    assert main([*arguments, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "no GPU" in out and "combine" in out and "ms" not in out
    assert main(["step", "--stage", "fast", "--device", "cpu"]) == 2
    assert main(["step", "--context", "100", "--max-context", "50", "--device", "cpu"]) == 2
    assert "max_context: got 50" in capsys.readouterr().err
    assert torch.get_num_threads() >= 1


def test_glue_by_function_adds_up(small):
    functions = launch_count.by_function(small).set_index("function")
    assert functions.loc["gates", "calls"] == 6 and functions.loc["prepare_query", "calls"] == 3
    assert (functions["launches"] == functions["calls"] * functions["each"]).all()
    fused = launch_count.by_function(small.at_stage("fused_glue"))
    assert (fused["launches"] == fused["calls"]).all()
    table = launch_count.by_stage(small, ("baseline", "split_k")).set_index("stage")
    assert table.loc["split_k", "all"] - table.loc["baseline", "all"] == 3


def test_measured_glue_is_summed_by_stage_and_batch():
    from types import SimpleNamespace

    row = dict(status="ok", max_context=1048576, batch=16, group="glue", kernel="k", launches=2, gpu_us=500.0)
    rows = [row | {"stage": "bf16_gemm", "share": 0.1}, row | {"stage": "bf16_gemm", "share": 0.2}]
    rows += [
        row | {"stage": "fused_glue", "share": 0.1},
        row | {"stage": "bf16_gemm", "group": "gemm", "share": 0.5},
    ]
    frame = schema.frame([{k: v for k, v in r.items()} for r in rows], "profile")
    found = launch_count.measured_glue(SimpleNamespace(results=lambda name: (frame, "evidence")))
    assert found.evidence == "evidence"
    assert found.rows["launches"].tolist() == [4, 2] and found.rows["ms"].tolist() == [1.0, 0.5]
    assert found.rows["share"].tolist() == pytest.approx([0.3, 0.1])


def test_products_in_fp32_and_what_rounding_does():
    from kernels.lab import fp32_products

    sizes = fp32_products.sizes(decode_step.flash(), 16).set_index("product")
    assert sizes.loc["hyper-connection", "count"] == 86
    assert sizes.loc["hyper-connection", "kbytes"] == pytest.approx(24 * 16384 * 4 / 1e3)
    assert (sizes["bf16_us"] < sizes["fp32_us"]).all()
    errors = fp32_products.rounding(decode_step.tiny()).set_index("product")["error"]
    assert errors["FP32"] < 1e-5 < errors.iloc[1] < errors.iloc[2] < 1e-2
