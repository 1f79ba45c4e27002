"""The launch model against arithmetic by hand, on made-up machine code; fitting and judging kept apart."""

import dataclasses

import pytest

from kernels.lab import launch_model, predict, predict_fit
from kernels.lab.compile import CLASSES, Compiled
from kernels.lab.compile.sass import Counts, Loop

TILE = {"block_h": 16, "block_t": 32, "num_warps": 4, "num_stages": 1}


def _counts(tensor_flops=0, widths=None, **classes):
    return Counts(dict.fromkeys(CLASSES, 0) | classes, widths or {}, {}, tensor_flops)


def _compiled(loop, target="h200", registers=64, shared=4096, tile=None):
    tile = tile or TILE
    target = {"h200": "sm_90", "rtx-pro-6000": "sm_120"}[target]
    return Compiled(
        "sparse_mla",
        "mma",
        tile,
        target,
        {},
        num_warps=4,
        shared_bytes=shared,
        registers=registers,
        max_threads=128,
        stack_bytes=0,
        spill_store_bytes=0,
        spill_load_bytes=0,
        counts=loop,
        main_loop=Loop(0, 16, 1, loop),
        loops=(Loop(0, 16, 1, loop),),
    )


def _launch(loop, blocks=1, passes=100, dram=0.0, l2=0.0, **how):
    return launch_model.Launch(_compiled(loop, **how), blocks, passes, dram, l2)


PLAIN = {name: 0.0 for name in ("launch_floor", "index_latency", "entry_latency", "barrier_latency")}
PLAIN |= {"issue_inefficiency": 1.0, "shared_conflicts": 1.0}


def test_a_pipe_sets_the_time_of_a_block_that_hides_its_latency():
    """1,000 FMA by 4 warps on 128 lanes are 1,000 clocks a pass; 100 passes at 1,980 MHz are 50.5 us."""
    found = launch_model.predict_launch(_launch(_counts(fma=1000)), "h200", PLAIN)
    assert found.us == pytest.approx(100 * 1000 / 1980)
    assert found.pipes["fma"] == 1000 and found.pipes["issue"] == 1000
    assert found.bound in ("fma", "issue")


def test_pipes_by_hand():
    widths = {"shared_load": {16: 2, 1: 3}, "global_load": {4: 5}}
    counts = _counts(
        tensor_flops=4096 * 16,
        widths=widths,
        integer=64,
        compare=32,
        special=4,
        conversion=8,
        shared_load=5,
        global_load=5,
        shuffle=6,
    )
    parameters = launch_model.parameters_of("sm_90") | PLAIN
    device = predict.device_of("h200")
    pipes = launch_model.pipe_clocks(counts, 4, device, parameters)
    assert pipes["integer"] == 96 * 128 / 64
    assert pipes["special"] == 4 * 128 / 16
    assert pipes["conversion"] == 8 * 128 / 64
    assert pipes["tensor"] == pytest.approx(4096 * 16 * 4 / (4096 * device["warp_mma_fraction"]))
    # Two LDS.128 are four wavefronts each, three LDS.U8 one each, loads one each, and six shuffles.
    assert pipes["memory pipe"] == 4 * (2 * 4 + 3 + 5 + 6)
    unified = launch_model.pipe_clocks(
        counts, 4, predict.device_of("rtx-pro-6000"), launch_model.parameters_of("sm_120") | PLAIN
    )
    assert unified["fma and integer"] == 96 * 128 / 128 and "integer" not in unified


def test_latency_is_hidden_by_a_second_block_until_the_pipe_is_full():
    loop = _counts(fma=100, barrier=1)
    parameters = PLAIN | {"barrier_latency": 150.0}
    times = [
        launch_model.predict_launch(_launch(loop, blocks=132 * n, passes=1000), "h200", parameters).us
        for n in (1, 2, 3, 4)
    ]
    clocks = [t * 1980 / 1000 for t in times]
    # A pass issues 101 instructions and then waits 150 clocks: max(r * 101, 101 + 150).
    assert clocks == pytest.approx([251, 251, 303, 404], rel=1e-3)


def test_a_grid_one_block_over_a_wave_costs_another_wave():
    loop = _counts(fma=1000)
    one = launch_model.predict_launch(_launch(loop, blocks=132, registers=255, shared=200_000), "h200", PLAIN)
    two = launch_model.predict_launch(_launch(loop, blocks=133, registers=255, shared=200_000), "h200", PLAIN)
    assert (one.waves, two.waves, one.resident) == (1, 2, 1)
    assert two.us == pytest.approx(2 * one.us)


def test_bytes_set_the_time_when_they_take_longer():
    found = launch_model.predict_launch(
        _launch(_counts(fma=1), passes=1, dram=4.8e9), "h200", PLAIN | {"dram_efficiency": 1.0}
    )
    assert found.bound == "dram" and found.us == pytest.approx(1000.0)
    few = launch_model.predict_launch(_launch(_counts(fma=1), passes=1, l2=64e6), "h200", PLAIN)
    assert few.bound == "l2", "one block draws 64 bytes a clock, whatever L2 could give"
    assert few.us == pytest.approx(64e6 / (64 * 1980e6) * 1e6, rel=1e-3)


def test_what_cannot_run_is_refused_with_a_reason():
    loop = _counts(fma=1)
    with pytest.raises(ValueError, match="compiled for sm_90, but rtx-pro-6000 is sm_120"):
        launch_model.predict_launch(_launch(loop), "rtx-pro-6000")
    with pytest.raises(ValueError, match="shared memory is the limit"):
        launch_model.predict_launch(_launch(loop, target="rtx-pro-6000", shared=101_377), "rtx-pro-6000")
    broken = dataclasses.replace(_compiled(loop), error="OutOfResources")
    with pytest.raises(ValueError, match="OutOfResources"):
        launch_model.predict_launch(launch_model.Launch(broken, 1, 1, 0, 0), "h200")
    for bad in ({"impl": "cuda"}, {"batch": 0}, {"num_splits": 2}, {"scratch_bytes": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            predict.point(**({"impl": "mma", "tile": TILE, "batch": 1} | bad))


def test_a_split_row_has_more_blocks_fewer_passes_and_a_second_launch():
    loop = _counts(tensor_flops=2 * 4096 * 128 // 4, tensor=64)
    code = [_compiled(loop), _compiled(loop)]
    whole = predict.launches(predict.point("mma", TILE, 16), code)
    split = predict.launches(predict.point("split_k", TILE, 16, num_splits=6), code)
    assert (whole[0].blocks, whole[0].passes) == (16 * 4, 16)
    assert (split[0].blocks, split[0].passes) == (16 * 4 * 6, 3)
    assert len(split) == 2 and split[1].blocks == 16 * 64 and not split[1].first
    both = predict.chain([launch_model.predict_launch(one, "h200") for one in split])
    assert both.us == pytest.approx(sum(p.us for p in both.launches))


def test_one_head_a_block_asks_l2_for_64_times_the_entries():
    loop = _counts(fma=10)
    simt = predict.launches(
        predict.point("simt", TILE | {"block_h": 1, "block_t": 16}, 4), [_compiled(loop)]
    )[0]
    mma = predict.launches(predict.point("mma", TILE | {"block_h": 64}, 4), [_compiled(loop)])[0]
    others = mma.l2_bytes - 584 * 4 * 512
    assert simt.l2_bytes - others == 64 * 584 * 4 * 512 and simt.dram_bytes == mma.dram_bytes


def test_unrolled_loops_and_repeated_scores_are_told_apart():
    tile = {"block_h": 16, "block_t": 32, "num_warps": 8, "num_stages": 1}
    one = 2 * 16 * 32 * 512
    repeated = _compiled(_counts(tensor_flops=(2 * one + one) // 8, tensor=48), tile=tile)
    repeated = dataclasses.replace(repeated, max_threads=256)
    assert predict.unrolled(repeated) == 1 and predict.tensor_efficiency(repeated) == pytest.approx(2 / 3)
    twice = _compiled(_counts(tensor_flops=2 * 2 * one // 4, tensor=128))
    assert predict.unrolled(twice) == 2 and predict.tensor_efficiency(twice) == 1


def test_a_prediction_has_no_band_until_a_record_gives_one(tmp_path, monkeypatch):
    asked, code = predict.point("mma", TILE, 1), [_compiled(_counts(fma=100))]
    monkeypatch.setattr(predict, "VALIDATION", tmp_path / "none.csv")
    found = predict.predict_compiled(asked, code, "h200")
    assert found.band is None and found.evidence == "predicted, not validated"
    record = tmp_path / "record.csv"
    record.write_text(
        "utc,device,target,count,median_error,p90_error,spearman,run_id\n"
        "2026-01-01,h200,sm_90,60,0.15,0.5,0.95,r\n"
    )
    monkeypatch.setattr(predict, "VALIDATION", record)
    found = predict.predict_compiled(asked, code, "h200")
    assert found.band == pytest.approx((found.us / 1.5, found.us * 1.5)) and "within 50 %" in found.evidence
    other = predict.predict_compiled(asked, [_compiled(_counts(fma=100), "rtx-pro-6000")], "rtx-pro-6000")
    assert "transferred to another device" in other.evidence


@pytest.fixture
def measurements(monkeypatch):
    """Times that the model itself gives with other constants, so that the right answer is known."""
    loop = _counts(
        tensor_flops=131_072,
        tensor=64,
        fma=200,
        integer=800,
        barrier=4,
        global_load=8,
        widths={"global_load": {16: 8}},
    )
    monkeypatch.setattr(
        predict_fit,
        "compile_points",
        lambda points, device: [[_compiled(loop)] * (1 + (p.impl == "split_k")) for p in points],
    )
    truth = launch_model.parameters_of("sm_90") | {"launch_floor": 5.0, "entry_latency": 1200.0}
    rows = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        for splits in (1, 2, 4, 8):
            asked = predict.point("split_k", TILE, batch, num_splits=splits)
            code = predict_fit.compile_points([asked], "h200")[0]
            us = predict.predict_compiled(asked, code, "h200", truth).us
            rows.append(
                {
                    "op": "sparse_mla_decode",
                    "impl": "split_k",
                    "batch": batch,
                    "heads": 64,
                    "topk": 512,
                    "num_splits": splits,
                    "status": "ok",
                    "timer": "chain",
                    "median_us": us,
                    **TILE,
                }
            )
    return rows


def test_validation_measures_the_error_of_the_constants_it_is_given(measurements):
    found = predict.validate(measurements, "h200")
    assert found.count == 32 and 0.1 < found.median_error < 1 and found.spearman > 0.9
    assert found.rows[0]["error"] >= found.rows[-1]["error"]
    truth = launch_model.parameters_of("sm_90") | {"launch_floor": 5.0, "entry_latency": 1200.0}
    exact = predict.validate(measurements, "h200", truth)
    assert exact.median_error == pytest.approx(0) and exact.meets()
    skipped = [row | {"status": "skipped"} for row in measurements[1:]] + measurements[:1]
    assert predict.validate(skipped, "h200").count == 1
    with pytest.raises(ValueError, match="no row"):
        predict.validate([], "h200")


def test_a_fit_improves_and_never_sees_what_it_is_judged_on(measurements):
    before = predict.validate(measurements, "h200")
    found = predict.fit(measurements, "h200", rounds=4)
    assert found.held_out.median_error < 0.5 * before.median_error
    assert found.fitted.count + found.held_out.count == 32
    spoiled = [dict(row) for row in measurements]
    for row, (asked, _) in zip(spoiled, predict_fit.points_of(spoiled), strict=True):
        if predict_fit.held_out(asked):
            row["median_us"] *= 7
    again = predict.fit(spoiled, "h200", rounds=4)
    assert again.parameters == found.parameters
    assert again.held_out.median_error > found.held_out.median_error
    for name, (low, high) in predict_fit.free_parameters().items():
        assert low <= found.parameters[name] <= high


def test_every_parameter_has_bounds_and_a_source():
    for row in launch_model.parameter_table():
        assert row["low"] <= row["value"] <= row["high"] and row["source"], row["parameter"]
    needed = {row["parameter"] for row in launch_model.parameter_table()}
    assert needed <= set(launch_model.parameters_of("sm_120"))
