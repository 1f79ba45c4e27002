"""The launch model against arithmetic by hand, on made-up machine code and on compiled kernels; its fit and record."""

import csv
import dataclasses
import json
import re
from types import SimpleNamespace

import pandas as pd
import pytest

from kernels.lab import launch_model, predict, predict_fit, validation
from kernels.lab.compile import CLASSES, Compiled, sass
from kernels.lab.compile.sass import Counts, Loop
from kernels.sparse_mla import tiles
from kernels.sparse_mla.launch import COMBINE_CHUNK

TILE = {"block_h": 16, "block_t": 32, "num_warps": 4, "num_stages": 1}


def _counts(tensor_flops=0, widths=None, **classes):
    opcodes = {"BAR": classes.get("barrier", 0)}
    return Counts(dict.fromkeys(CLASSES, 0) | classes, widths or {}, opcodes, tensor_flops)


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


PLAIN = {
    name: 0.0
    for name in (
        "launch_floor", "overlapped_floor", "l2_exposure", "entry_latency", "instruction_latency", "barrier_latency",
        "shuffle_latency", "tensor_latency",
    )
}  # fmt: skip
PLAIN |= {"scalar_conflicts": 1.0}


def test_a_pipe_sets_the_time_of_a_block_that_waits_for_nothing():
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
    parameters = launch_model.parameters_of("sm_90") | PLAIN | {"scalar_conflicts": 4.0}
    device = predict.device_of("h200")
    launch = _launch(counts)
    [group] = launch.passing
    pipes = launch_model.pipe_clocks(group, launch, device, parameters)
    assert pipes["integer"] == 96 * 128 / 64
    assert pipes["special"] == 4 * 128 / 16
    assert pipes["conversion"] == 8 * 128 / 64
    assert pipes["tensor"] == pytest.approx(4096 * 16 * 4 / (4096 * device["warp_mma_fraction"]))
    # Two LDS.128 are four wavefronts each, three LDS.U8 four each by their conflicts, loads one each, six shuffles.
    assert pipes["memory pipe"] == 4 * (2 * 4 + 3 * 4 + 5 + 6)
    there = launch_model.parameters_of("sm_120") | PLAIN
    unified = launch_model.pipe_clocks(group, launch, predict.device_of("rtx-pro-6000"), there)
    assert unified["fma and integer"] == 96 * 128 / 128 and "integer" not in unified


PRODUCERS = {"block_h": 64, "block_t": 16, "num_warps": 8, "num_stages": 2, "producer_warps": 4}


def _side_by_side(consumers, producers, around=None, rest=None, **how):
    """A kernel of 8 consumers, in a loop that hands out work, and 4 producers."""
    pieces = [consumers, around or _counts()]
    dispatch = _sum(pieces)
    whole = _sum([dispatch, producers, rest or _counts()])
    loops = (Loop(0, 400, 1, dispatch), Loop(100, 200, 2, consumers), Loop(500, 600, 1, producers))
    one = _compiled(whole, tile=PRODUCERS, **how)
    one = dataclasses.replace(one, loops=loops, main_loop=loops[1], max_threads=384, registers=168)
    return launch_model.Launch(one, 1, 100, 0.0, 0.0, pass_loads=(0, 1))


def _sum(pieces):
    widths = [width for piece in pieces for width in piece.widths.items()]
    assert len({name for name, _ in widths}) == len(widths), "a class in two pieces"
    classes = {name: sum(piece[name] for piece in pieces) for name in CLASSES}
    return Counts(classes, dict(widths), {}, sum(piece.tensor_flops for piece in pieces))


FETCH = {"global_load": 8, "widths": {"global_load": {16: 8}}}


def test_producers_and_consumers_share_the_pipes_and_overlap():
    """A pass takes as long as the slower group or the busiest pipe; each group counts with its own warps."""
    launch = _side_by_side(_counts(tensor_flops=4096, tensor=1, fma=99), _counts(integer=992, **FETCH))
    alone = launch_model.predict_launch(launch, "h200", PLAIN)
    assert alone.pipes["issue"] == 100 * 8 / 4 + 1000 * 4 / 4 and alone.pipes["fma"] == 99 * 8 * 32 / 128
    assert alone.pipes["integer"] == 992 * 4 * 32 / 64 and alone.latency == 0
    assert alone.us == pytest.approx(100 * 1984 / 1980)
    # A clock an instruction: the producers wait 1,000 beside their 1,984, longer than the consumers' 100 and 200
    slow = launch_model.predict_launch(launch, "h200", PLAIN | {"instruction_latency": 1.0})
    assert slow.latency == 1000 and slow.us == pytest.approx(100 * 2984 / 1980)
    # What the producers' loads wait for counts in their chain alone
    late = launch_model.predict_launch(launch, "h200", PLAIN | {"entry_latency": 100.0})
    assert late.latency == pytest.approx(198)
    busy = _side_by_side(_counts(tensor_flops=4096, tensor=1, fma=9999), _counts(integer=92, **FETCH))
    hidden = launch_model.predict_launch(busy, "h200", PLAIN | {"entry_latency": 100.0})
    assert hidden.latency == 0 and hidden.us == pytest.approx(100 * (10_000 * 2 + 100) / 1980)


def test_ends_of_a_block_with_producers_follow_one_another():
    """The consumers' code outside their loop lies in a loop that hands out work, and is still no pass."""
    work = {"consumers": _counts(tensor_flops=4096, tensor=1), "producers": _counts(integer=92, **FETCH)}
    bare = _side_by_side(**work)
    assert [(group.demand.instructions, group.warps) for group in bare.ends] == [(0, 8), (0, 4)]
    launch = _side_by_side(**work, around=_counts(fma=400), rest=_counts(conversion=300))
    assert [(group.demand.fma, group.demand.conversion, group.warps) for group in launch.ends] == [
        (400, 0, 8),
        (0, 300, 4),
    ]
    more = [
        launch_model.predict_launch(one, "h200", PLAIN | {"instruction_latency": 1.0}).us
        for one in (bare, launch)
    ]
    busy = 400 * 8 / 4 + 300 * 4 * 32 / 64
    assert more[1] - more[0] == pytest.approx((busy + 400 + 300) / 1980)


def test_a_queue_by_hand():
    """Alone a block waits 150 and works 100; two meet at the server in 100/250 of the rounds."""
    assert launch_model.round_clocks(150, 100, 1) == 250
    assert launch_model.round_clocks(150, 100, 2) == pytest.approx(150 + 100 * 1.4)
    assert launch_model.round_clocks(150, 100, 30) == pytest.approx(3000, rel=0.01)
    assert launch_model.round_clocks(150, 0, 8) == 150
    assert launch_model.round_clocks(0, 0, 3) == 0


def test_latency_is_hidden_by_other_blocks_until_the_pipe_is_full():
    loop = _counts(fma=99, barrier=1)
    parameters = PLAIN | {"barrier_latency": 150.0}
    times = [
        launch_model.predict_launch(_launch(loop, blocks=132 * n, passes=1000), "h200", parameters).us
        for n in (1, 2, 8)
    ]
    clocks = [t * 1980 / 1000 for t in times]
    assert clocks[:2] == pytest.approx([250, 290]) and 800 < clocks[2] < 810


def test_blocks_of_unequal_length_count_with_their_mean_until_the_last_wave():
    loop = _counts(fma=1000)
    launch = _launch(loop, blocks=3 * 132, passes=3, registers=255, shared=200_000)
    launch = dataclasses.replace(launch, mean_passes=2.5)
    found = launch_model.predict_launch(launch, "h200", PLAIN)
    assert found.waves == 3 and found.us == pytest.approx((2.5 + 2.5 + 3) * 1000 / 1980)


def test_writes_hide_behind_later_waves_only():
    loop = _counts(fma=1000)
    launch = dataclasses.replace(_launch(loop, registers=255, shared=200_000), written_bytes=5.5e6)
    parameters = PLAIN | {"write_efficiency": 0.5}
    plain = launch_model.predict_launch(_launch(loop), "h200", PLAIN).us
    found = launch_model.predict_launch(launch, "h200", parameters)
    assert found.terms["write"] == pytest.approx(2.0) and found.us == pytest.approx(plain + 2.0)
    twice = launch_model.predict_launch(dataclasses.replace(launch, blocks=264), "h200", parameters)
    assert twice.terms["write"] == pytest.approx(1.0)


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
    with pytest.raises(ValueError, match="producer_warps=4 for 'mma'"):
        predict.point("mma", PRODUCERS, 1)


def test_a_split_row_has_more_blocks_fewer_passes_and_a_second_launch():
    loop = _counts(tensor_flops=2 * 4096 * 128 // 4, tensor=64, special=100, widths={"global_load": {16: 36}})
    code = [_compiled(loop), _compiled(loop)]
    whole = predict.launches(predict.point("mma", TILE, 16), code)
    split = predict.launches(predict.point("split_k", TILE, 16, num_splits=6), code)
    assert (whole[0].blocks, whole[0].passes) == (16 * 4, 16)
    assert (split[0].blocks, split[0].passes) == (16 * 4 * 6, 3)
    assert split[0].mean_passes == pytest.approx(16 / 6)
    assert len(split) == 2 and split[1].blocks == 16 * 64 and split[1].overlapped and not whole[0].overlapped
    both = predict.chain([launch_model.predict_launch(one, "h200") for one in split])
    assert both.us == pytest.approx(sum(p.us for p in both.launches))


def test_staged_writes_the_result_itself_with_one_split():
    loop = _counts(tensor_flops=2 * 4096 * 128 // 4, tensor=64)
    one = predict.point("staged", TILE, 16)
    assert not one.combines and len(one.requests("sm_120")) == 1 and one.tile["wgmma"] is False
    two = predict.point("staged", TILE, 16, num_splits=2)
    assert [r.impl for r in two.requests("sm_120")] == ["staged", "combine"]
    final = predict.launches(one, [_compiled(loop)])[0]
    assert final.written_bytes == 16 * 64 * (2 * 512 + 4) and final.overlapped
    partial = predict.launches(two, [_compiled(loop)] * 2)[0]
    assert partial.written_bytes == 2 * final.written_bytes


def test_splits_beyond_the_last_tile_do_no_work():
    loop = _counts(tensor_flops=2 * 4096 * 128 // 4, tensor=64)
    many = predict.launches(predict.point("split_k", TILE, 1, num_splits=64), [_compiled(loop)] * 2)
    enough = predict.launches(predict.point("split_k", TILE, 1, num_splits=16), [_compiled(loop)] * 2)
    assert many[0].blocks == enough[0].blocks and many[0].written_bytes == enough[0].written_bytes
    assert many[1].passes == 64 / COMBINE_CHUNK and enough[1].passes == 16 / COMBINE_CHUNK


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
    enough = {"special": 100, "widths": {"global_load": {16: 100}}}
    repeated = _compiled(_counts(tensor_flops=(2 * one + one) // 8, tensor=48, **enough), tile=tile)
    repeated = dataclasses.replace(repeated, max_threads=256)
    assert predict.unrolled(repeated) == 1 and predict.tensor_efficiency(repeated) == pytest.approx(2 / 3)
    twice = _compiled(_counts(tensor_flops=2 * 2 * one // 4, tensor=128, **enough))
    assert predict.unrolled(twice) == 2 and predict.tensor_efficiency(twice) == 1


def test_tiles_a_pass_with_producers_are_counted_in_both_loops():
    one = 4 * 512 * 64 * 16
    consumers = _counts(tensor_flops=one // 8, tensor=64, special=8)
    enough = _counts(integer=9, global_load=6, widths={"global_load": {16: 6}})
    launch = _side_by_side(consumers, enough)
    assert predict.unrolled(launch.compiled) == 1 and predict.tensor_efficiency(launch.compiled) == 1
    twice = _counts(tensor_flops=one // 4, tensor=128, special=16)
    few = _side_by_side(twice, enough)
    assert predict.unrolled(few.compiled) == 1, "the producers fetch one tile"
    both = _side_by_side(twice, _counts(global_load=12, widths={"global_load": {16: 12}}))
    assert predict.unrolled(both.compiled) == 2 and predict.tensor_efficiency(both.compiled) == 1


def test_a_kernel_with_producers_is_read_as_it_is_launched():
    """On real machine code: all warps count for occupancy, and each loop has the warps that run it."""
    asked = [predict.point("staged", tile, 64, num_splits=2) for tile in tiles_with_producers("sm120")]
    for one, code in zip(asked, predict.compile_points(asked, "rtx-pro-6000"), strict=True):
        launch = predict.launches(one, code)[0]
        assert launch.fit.threads == 32 * (one.tile["num_warps"] + one.tile["producer_warps"])
        assert launch.fit.blocks == launch.fit.by_registers == 1
        consumers, producers = launch.passing
        assert (consumers.warps, producers.warps) == (one.tile["num_warps"], one.tile["producer_warps"])
        assert consumers.demand.tensor_flops and not producers.demand.tensor_flops
        assert (
            producers.loads == (0, 1) and producers.demand.global_memory > consumers.demand.global_memory == 0
        )
        assert predict.tensor_efficiency(code[0]) == 1
        for group in launch.ends:
            assert 0 < group.demand.instructions < code[0].counts.total / 2


def tiles_with_producers(device_class):
    found = {
        row.tile
        for row in tiles.choices()
        if row.device_class == device_class and row.tile.producer_warps and not row.tile.few
    }
    assert found
    return sorted(found, key=str)


def _stepped(compiled, instructions):
    """Tiles a pass by another road: how far the main loop moves the counter that its last branch tests."""
    inside = [i for i in instructions if compiled.main_loop.first <= i.address <= compiled.main_loop.last]
    return {
        int(found.group(3), 16)
        for i in inside
        if i.opcode in ("IADD3", "VIADD", "UIADD3", "IADD")
        and (found := re.match(r"(U?R\d+)(?:, U?P\w+)*, (U?R\d+), (0x[0-9a-f]+)(?:, U?RZ)?", i.operands))
        and found.group(1) == found.group(2)
    }


def test_no_compiled_kernel_handles_two_tiles_a_pass():
    """On real machine code: with 8 warps and 32 tokens warps repeat scores, which is no second tile."""
    asked = [predict.point(impl, predict_tile(impl), 1, num_splits=n) for impl, n in RUNGS]
    asked += [predict.point("staged", tile, 1, num_splits=8) for tile in tiles_with_producers("sm120")]
    for one, code in zip(asked, predict.compile_points(asked, "rtx-pro-6000"), strict=True):
        assert all(kernel.ok for kernel in code), code
        assert predict.unrolled(code[0]) == 1, one
        steps = _stepped(code[0], sass.parse(code[0].sass)[0])
        # By a tile, by its tokens, or by its indices of four bytes
        assert steps & {1, one.tile["block_t"], 4 * one.tile["block_t"]}, (one, steps)


def test_the_newest_rung_is_predicted_for_the_campaigns_card():
    asked = predict.planned_point(16, device="rtx-pro-6000")
    assert asked.impl == "staged"
    [found] = predict.predict_points([asked], "rtx-pro-6000")
    plain = predict.point("split_k", predict_tile("split_k"), 16, num_splits=4)
    [slower] = predict.predict_points([plain], "rtx-pro-6000")
    assert 1 < found.us < slower.us


def _record(path, rows):
    validation.write(
        [
            dict.fromkeys(validation.COLUMNS, "")
            | {"utc": "2026-01-01", "device": device, "target": target, "split": split}
            | {"measured_us": measured, "predicted_us": predicted, "unseen_us": apart[0] if apart else ""}
            for device, target, split, measured, predicted, *apart in rows
        ],
        path,
    )


def test_a_prediction_has_no_band_until_a_record_gives_one(tmp_path, monkeypatch):
    asked, code = predict.point("mma", TILE, 1), [_compiled(_counts(fma=100))]
    monkeypatch.setattr(predict, "VALIDATION", tmp_path / "none.csv")
    found = predict.predict_compiled(asked, code, "h200")
    assert found.band is None and found.evidence == "not validated"
    record = tmp_path / "record.csv"
    held = [("h200", "sm_90", "holdout", 10.0, 15.0), ("h200", "sm_90", "holdout", 20.0, 30.0)]
    _record(record, [*held, ("h200", "sm_90", "fit", 10.0, 90.0)])
    monkeypatch.setattr(predict, "VALIDATION", record)
    found = predict.predict_compiled(asked, code, "h200")
    assert found.band == pytest.approx((found.us / 1.5, found.us * 1.5)) and "within 50 %" in found.evidence
    other = predict.predict_compiled(asked, [_compiled(_counts(fma=100), "rtx-pro-6000")], "rtx-pro-6000")
    assert "transferred to another device" in other.evidence
    assert predict.validation_of("sm_90")["count"] == 2
    _record(tmp_path / "apart.csv", [(*row, 3 * row[3]) for row in held])
    monkeypatch.setattr(predict, "VALIDATION", tmp_path / "apart.csv")
    assert predict.predict_compiled(asked, code, "h200").band[1] == pytest.approx(found.us * 1.5)
    wider = predict.predict_compiled(asked, [_compiled(_counts(fma=100), "rtx-pro-6000")], "rtx-pro-6000")
    assert wider.band[1] == pytest.approx(wider.us * 3) and "had not seen" in wider.evidence


def predict_tile(impl):
    return tiles.SERIAL if impl == "serial" else tiles.SIMT if impl == "simt" else tiles.MANY_HEADS


RUNGS = (("serial", 1), ("simt", 1), ("mma", 1), ("split_k", 8), ("staged", 1), ("staged", 8))


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
    truth = launch_model.parameters_of("sm_90") | {"overlapped_floor": 3.0, "entry_latency": 900.0}
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
    assert found.count == 32 and 0.05 < found.median_error < 1 and found.spearman > 0.9
    assert abs(found.rows[0]["error"]) >= abs(found.rows[-1]["error"])
    truth = launch_model.parameters_of("sm_90") | {"overlapped_floor": 3.0, "entry_latency": 900.0}
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


def test_split_counts_of_a_tile_stay_on_one_side(measurements):
    points = [asked for asked, _ in predict_fit.points_of(measurements)]
    sides = {predict_fit.held_out(asked) for asked in points}
    assert sides == {True, False}
    for asked in points:
        assert predict_fit.held_out(asked) == predict_fit.held_out(
            dataclasses.replace(asked, num_splits=5, heads=8)
        )


def test_rows_that_no_model_can_judge_are_left_out():
    row = {
        "op": "sparse_mla_decode",
        "impl": "simt",
        "status": "ok",
        "batch": 1,
        "median_us": 5.0,
        "topk": 512,
        **TILE,
    }
    assert len(predict_fit.points_of([row])) == 1
    for change in (
        {"timer": "cold"},
        {"num_splits": 2},
        {"impl": "flash_mla"},
        {"context": 64},
        {"status": "skipped"},
    ):
        assert predict_fit.points_of([row | change]) == [], change
    [(half, _)] = predict_fit.points_of([row | {"impl": "split_k_fp32", "num_splits": 2}])
    assert half.impl == "split_k" and half.scratch_bytes == 4
    wide = {"block_h": 64, "block_t": 64, "num_warps": 8, "num_stages": 1, "impl": "auto"}
    natives = predict_fit.points_of([row | wide | {"tile_class": kind} for kind in ("native", "sm120")])
    assert [asked.tile["wgmma"] for asked, _ in natives] == [True, False]
    listed = {(row.device_class, row.tile) for row in tiles.choices()}
    for name, tile in listed:
        kind = "native" if name == "sm90" else "sm120"
        sizes = {n: getattr(tile, n) for n in predict_fit.TILE}
        if tile.wide or tile.few:
            assert predict_fit.points_of([row | sizes | {"impl": "auto", "tile_class": kind}]) == []
            with pytest.raises(ValueError, match="no wide tiles"):
                predict.point("staged", tile, 1)
            continue
        [(asked, _)] = predict_fit.points_of([row | sizes | {"impl": "auto", "tile_class": kind}])
        assert tiles.Tile(**asked.tile) == tile, "a record names a tile by its sizes"
        if tile.producer_warps and not tile.wgmma:
            [(asked, _)] = predict_fit.points_of([row | sizes | {"impl": "auto", "tile_class": "native"}])
            assert tiles.Tile(**asked.tile) == tile, "native on a card that is no Hopper"
        columns = {"wgmma": str(int(tile.wgmma)), "producer_warps": str(tile.producer_warps)}
        [(asked, _)] = predict_fit.points_of([row | sizes | columns | {"impl": "staged"}])
        assert tiles.Tile(**asked.tile) == tile
    thrice = [row | {"median_us": us} for us in (4.0, 5.0, 9.0)]
    assert [us for _, us in predict_fit.points_of(thrice)] == [5.0]


def test_the_command_writes_points_and_constants(measurements, tmp_path, monkeypatch, capsys):
    from kernels.lab.__main__ import main

    rows = tmp_path / "rows.csv"
    with rows.open("w", newline="") as file:
        writer = csv.DictWriter(file, measurements[0])
        writer.writeheader()
        writer.writerows(measurements)
    points, constants = tmp_path / "points.csv", tmp_path / "constants.csv"
    original = launch_model.PARAMETERS.read_text()
    constants.write_text(original)
    monkeypatch.setattr(predict, "VALIDATION", points)
    monkeypatch.setattr(launch_model, "PARAMETERS", constants)
    assert main(["validate", "--rows", str(rows), "--dry-run"]) == 0 and not points.exists()
    assert main(["validate", "--rows", str(rows)]) == 0
    assert "holdout  all" in capsys.readouterr().out
    with points.open() as file:
        written = list(csv.DictReader(file))
    assert {row["producer_warps"] for row in written} == {"0"}
    assert len(written) == 32 and {row["split"] for row in written} == {"fit", "holdout"}
    assert predict.validation_of("sm_90")["count"] == sum(row["split"] == "holdout" for row in written)
    before, after = (list(csv.DictReader(text.splitlines())) for text in (original, constants.read_text()))
    assert [row["source"] for row in before] == [row["source"] for row in after]
    changed = {row["parameter"] for row, new in zip(before, after, strict=True) if row != new}
    assert changed and changed <= set(predict_fit.free_parameters())
    assert main(["validate", "--rows", str(tmp_path / "rows.txt")]) == 2


def test_timings_of_the_tuner_are_rows_too(tmp_path):
    timing = {
        "heads": 8,
        "candidates": 512,
        "batch": 1,
        "tile": [16, 32, 4, 1, False],
        "num_splits": 16,
        "us": 7.9,
    }
    path = tmp_path / "timings.jsonl"
    path.write_text(json.dumps(timing) + "\n")
    [(asked, us)] = predict_fit.points_of(validation.read_rows(path))
    assert (asked.impl, asked.topk, asked.num_splits, us) == ("staged", 512, 16, 7.9)
    path.write_text(json.dumps(timing | {"tile": [64, 64, 8, 2, True, 4]}) + "\n")
    [(asked, _)] = predict_fit.points_of(validation.read_rows(path))
    assert tiles.Tile(**asked.tile) == tiles.Tile(64, 64, 8, 2, True, 4)


def test_a_kernel_left_out_is_judged_by_the_others(measurements):
    assert predict_fit.unseen(measurements, "h200") is None, "there is one kernel only"
    wider = [row | {"block_h": 32, "median_us": 2 * row["median_us"]} for row in measurements]
    found = predict_fit.unseen(measurements + wider, "h200", rounds=2)
    assert found.count == 64 and len(found.rows) == 64
    # The same code at twice the time: each is judged by the other, and off by their ratio
    assert found.median_error > 0.2


def test_every_parameter_has_bounds_and_a_source():
    for row in launch_model.parameter_table():
        assert row["low"] <= row["value"] <= row["high"] and row["source"], row["parameter"]
    needed = {row["parameter"] for row in launch_model.parameter_table()}
    assert needed <= set(launch_model.parameters_of("sm_120"))


def test_the_model_is_judged_on_the_newest_run_that_measured_the_operator(monkeypatch):
    """A run can hold the decode step alone: it is passed over, wherever it stands. A complete run comes first."""
    from kernels.lab.records import store

    def record(run_id, op, complete=True):
        table = pd.DataFrame({"op": [op], "median_us": [1.0]})
        return SimpleNamespace(info={"run_id": run_id, "complete": complete}, table=lambda name: table)

    several = [record("3", "decode_step"), record("2", "sparse_mla_decode"), record("1", "sparse_mla_decode")]
    several = [record("4", "sparse_mla_decode", complete=False), *several]
    monkeypatch.setattr(store, "load_all", lambda device: several)
    rows, info = validation.recorded_rows("h200")
    assert info["run_id"] == "2" and [row["op"] for row in rows] == ["sparse_mla_decode"]
    monkeypatch.setattr(store, "load_all", lambda device: several[:2])
    assert validation.recorded_rows("h200")[1]["run_id"] == "4"
    monkeypatch.setattr(store, "load_all", lambda device: several[1:2])
    with pytest.raises(ValueError, match="no recorded run of sparse MLA decode"):
        validation.recorded_rows("h200")
