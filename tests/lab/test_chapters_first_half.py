"""What chapters 1 to 3 compute: counts against hand arithmetic, tiles explained, and checks that can fail."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from kernels.lab import budget, exercises
from kernels.lab.chapters import (
    baseline,
    machine_code,
    rewrite,
    roofline_picture,
    rung_check,
    step,
    tile_picture,
    tile_space,
)
from kernels.lab.compile import CLASSES, Compiled, Counts, Loop
from kernels.lab.evidence import Evidence
from kernels.lab.records import schema
from kernels.sparse_mla import Tile

BOOK = Path(__file__).resolve().parents[2] / "book"


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def _compiled(impl="mma", block_h=32, block_t=32, warps=8, shared=98_304, registers=225, spill=0, **classes):
    counts = Counts(dict.fromkeys(CLASSES, 0) | classes, {"global_load": {16: 4}}, {"HMMA": 96}, 96 * 4096)
    tile = {"block_h": block_h, "block_t": block_t, "num_warps": warps, "num_stages": 1}
    return Compiled(
        "sparse_mla",
        impl,
        tile,
        "sm_120",
        {},
        num_warps=warps,
        num_stages=1,
        shared_bytes=shared,
        registers=registers,
        max_threads=32 * warps,
        stack_bytes=0,
        spill_store_bytes=spill,
        spill_load_bytes=0,
        counts=counts,
        main_loop=Loop(0, 0, 1, counts),
        loops=(Loop(0, 0, 1, counts),),
    )


def test_traffic_is_64_times_what_is_needed_and_a_group_of_32_leaves_two():
    table = baseline.traffic((1, 16))
    assert list(table["ratio"]) == [64, 64] and list(table["blocks"]) == [64, 1024]
    assert table["needed_mb"][0] == pytest.approx(512 * 584 / 1e6)
    assert baseline.traffic((16,), block_h=32)["ratio"][0] == 2
    assert baseline.intensities()["requested"] == pytest.approx(2048 / 584)
    assert baseline.intensities(block_h=64)["requested"] == pytest.approx(64 * 2048 / 584)


def test_bounds_are_each_count_over_its_rate():
    one = _compiled("simt", 1, 16, 4, fma=1000)
    table = baseline.bounds(one, batch=2).set_index("bound")["us"]
    assert table["requested KV bytes, from L2"] == pytest.approx(2 * 64 * 512 * 584 / 8700e3)
    passes = 2 * 64 * 32
    issued = passes * 1000 * 4 / 188 / 4 / 2617
    assert table["issuing the main loops"] == pytest.approx(issued)
    with pytest.raises(ValueError, match="main loop"):
        baseline.issue_us(dataclasses.replace(one, main_loop=None), 1, 1, "rtx-pro-6000")


def test_the_clock_is_set_beside_the_card_that_measured(monkeypatch):
    monkeypatch.setattr(baseline, "per_head", lambda target: _compiled("simt", 1, 16, 4, fma=1000))
    rows = schema.frame(
        [
            {"impl": "simt", "timer": "chain", "status": "ok", "batch": 16, "median_us": 100.0},
            {"impl": "simt", "timer": "cold", "status": "ok", "batch": 16, "median_us": 900.0},
        ]
    )
    table, name = baseline.against_clock(rows, "NVIDIA H200")
    assert name == "NVIDIA H200" and table["us"].iloc[-1] == 100.0 and table["share"].iloc[-1] == 1
    unknown, name = baseline.against_clock(rows, "a card that nobody knows")
    assert "RTX PRO 6000" in name and unknown["share"].isna().all() and len(unknown) == 4


def test_the_mix_counts_every_instruction_once_and_divides_by_the_work():
    one = _compiled(tensor=96, fma=100, move=60, uniform=4)
    table = machine_code.mix(one)
    assert table["instructions"].sum() == 260 and table["share"].sum() == pytest.approx(1)
    tensor = table.set_index("group").loc["tensor", "per_pair"]
    assert tensor == pytest.approx(96 * 8 / (32 * 32))
    assert machine_code.loop_work(_compiled("simt", 1, 16)) == 16
    # 96 instructions of 4,096 operations on 8 warps, where 32 x 32 pairs need 2,048 each
    assert machine_code.issued_over_needed(one) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="no main loop"):
        machine_code.mix(dataclasses.replace(one, main_loop=None, error="out of registers"))


def test_a_loop_that_fetches_two_tiles_is_told_from_one():
    assert machine_code.one_tile_a_pass(_compiled())
    assert not machine_code.one_tile_a_pass(_compiled(block_t=8, block_h=16))


def test_every_class_of_instruction_has_a_group():
    grouped = {name for names in machine_code.GROUPS.values() for name in names}
    assert set(CLASSES) - grouped <= {"tensor_memory"}


@pytest.mark.parametrize("tile", [(32, 32, 8), (16, 16, 4), (64, 64, 8)])
def test_a_key_tile_in_two_layouts_is_named_to_the_byte(tile):
    need = budget.tile_budget(*tile)
    reuse = need.shared["probabilities"] + need.shared["row_reduction"]
    shared = need.shared_bytes + need.shared["key_tile"] - reuse
    picked, residual = tile_space.explain_shared(need, shared)
    assert set(picked) == {tile_space.KEPT_TWICE, "reuse"} and residual == 0
    assert tile_space.explain_shared(need, need.shared_bytes) == ({}, 0)
    assert tile_space.explain_shared(need, need.shared_bytes + 300_000)[1] > 100_000


def test_tiles_keep_their_reason_as_rows():
    good, big = _compiled(), _compiled(block_h=64, block_t=64, shared=196_608, spill=10)
    broken = dataclasses.replace(good, error="ran out of patience", shared_bytes=None, registers=None)
    table = tile_space.rows([good, big, broken])
    assert sorted(table["verdict"]) == ["compiler", "fits", "shared memory"]
    assert tile_space.pick(table, 64, 64)["reason"] == "95,232 B too much, spills"
    assert tile_space.reason(good) == "legal"
    with pytest.raises(KeyError, match="not in the table"):
        tile_space.pick(table, 16, 128)
    assert len(tile_space.beside_budget([good, big, broken])) == 2
    assert tile_picture.tile_map(table).axes


def test_the_quick_grid_is_part_of_the_full_one():
    quick, full = (tile_space.tiles(profile) for profile in ("quick", "full"))
    assert all(tile in full for tile in quick) and len(quick) < len(full)
    assert len({tuple(tile.values()) for tile in full}) == len(full)


def test_the_whole_shrinks_and_the_busiest_does_not():
    before = _compiled("simt", 1, 16, 4, fma=1600)
    after = _compiled(fma=1300)
    table = rewrite.instruction_table((before, after), (1, 64)).set_index(["impl", "batch"])
    assert table.loc[("simt", 1), "whole"] == pytest.approx(64 * 32 * 1600 * 4 / 1e6)
    assert table.loc[("mma", 1), "busiest"] == pytest.approx(16 * 1300 * 8 / 1e6)
    one = table.loc[("simt", 1), "busiest"] / table.loc[("mma", 1), "busiest"]
    many = table.loc[("simt", 64), "busiest"] / table.loc[("mma", 64), "busiest"]
    assert one < 2 < 20 < many


def test_a_grid_of_groups_leaves_186_idle_at_batch_1():
    table = rewrite.grid_fill((1, 94, 128), 32).set_index("batch")
    assert (
        table.loc[1, "idle_sms"] == 186 and table.loc[94, "idle_sms"] == 0 and table.loc[128, "fullest"] == 2
    )
    assert rewrite.fill_picture({"mma": rewrite.grid_fill((1, 2), 32)}).axes


def test_amdahl_and_the_campaigns_figures():
    assert rewrite.whole_speedup(0.5, 2) == pytest.approx(4 / 3)
    assert rewrite.whole_speedup(1, 4) == 4 and rewrite.whole_speedup(0, 4) == 1
    with pytest.raises(ValueError, match="share=2"):
        rewrite.whole_speedup(2, 1)
    table = rewrite.adds_up().set_index("quantity")
    assert table.loc["attention faster (times)", "follows"] == pytest.approx(5350 / 850)
    with pytest.raises(KeyError, match="no such claim"):
        rewrite.claim("a9-nothing")
    assert set(rewrite.other_card()["impl"]) == {"simt", "mma"}


def test_a_prediction_that_nobody_judged_is_not_shown(monkeypatch):
    from kernels.lab import predict

    monkeypatch.setattr(predict, "validation_of", lambda target: None)
    rows, evidence = rewrite.predictions({"simt": {}}, (1,))
    assert rows.empty and not evidence.available
    assert "No prediction" in rewrite.prediction_picture(rows, evidence).axes[0].texts[0].get_text()


def test_the_rungs_are_right_and_a_wrong_one_is_seen(monkeypatch):
    lab = SimpleNamespace(on_gpu=False, device="cpu")
    shape = rung_check.Shape(2, 2, 20, 1)
    table = rung_check.check_rungs(lab, ("simt", "mma"), small=shape)
    assert table["right"].all() and len(table) == 4
    assert "2 heads" in rung_check.said(table)
    tiles = rung_check.check_tiles(lab, [Tile(16, 16, 4)], small=shape)
    assert tiles["right"].all()

    real = rung_check.sparse_mla_decode

    def off(**arguments):
        out, lse = real(**arguments)
        return (out.float() * 1.01).to(torch.bfloat16), lse

    monkeypatch.setattr(rung_check, "sparse_mla_decode", off)
    assert not rung_check.check_rungs(lab, ("mma",), small=shape)["right"].any()


def test_unused_bytes_of_the_inputs_are_nan():
    given = rung_check.inputs(rung_check.Shape(3, 1, 20, 1), "cpu", absent=True)
    assert given["topk_length"].tolist() == [20, 10, 0] and (given["indices"][:, 0] == -1).all()
    assert (given["kv_cache"] == 0xFF).float().mean() > 0.3


def _lab_with(**tables):
    def results(name):
        return tables[name], Evidence("recorded", "a card")

    return SimpleNamespace(results=results)


def test_the_steps_profile_is_shown_where_it_exists():
    empty, evidence = step.profile(_lab_with())
    assert empty.empty and not evidence.available and step.picture(empty, evidence).axes
    rows = [
        {
            "stage": "baseline",
            "batch": batch,
            "max_context": width,
            "group": group,
            "gpu_us": us,
            "status": "ok",
        }
        for batch, width, group, us in (
            (16, 8, "attention", 30.0),
            (16, 8, "glue", 10.0),
            (16, 4, "glue", 99.0),
            (64, 8, "glue", 99.0),
        )
    ]
    frame = schema.frame(rows, "profile")
    table, evidence = step.profile(_lab_with(decode_step_profile=frame), ("baseline", "mma"), batch=16)
    assert evidence.available and step.share_of(table, "baseline", "attention") == pytest.approx(0.75)
    assert step.share_of(table, "mma", "attention") is None
    with pytest.raises(ValueError, match="stages"):
        step.profile(_lab_with(), ("yesterday",))
    by_batch, _ = step.over_batches(_lab_with(decode_step_profile=frame))
    assert by_batch.index.tolist() == ["batch 16", "batch 64"]
    assert list(by_batch.columns) == ["attention", "glue"] and step.over_batches(_lab_with())[0].empty


def test_the_steps_products_are_counted():
    columns = ("stage", "batch", "max_context", "group", "launches", "gpu_us", "status")
    rows = [
        ("bf16_gemm", 1, 8, "gemm", 5, 2000.0, "ok"),
        ("indexer_cap", 1, 8, "gemm", 3, 1000.0, "ok"),
        ("indexer_cap", 1, 8, "gemm_fp32", 4, 500.0, "ok"),
        ("indexer_cap", 1, 8, "experts", 9, 900.0, "ok"),
        ("indexer_cap", 1, 4, "gemm", 7, 700.0, "ok"),
    ]
    frame = schema.frame([dict(zip(columns, row, strict=True)) for row in rows], "profile")
    table, _ = step.products(_lab_with(decode_step_profile=frame), ("indexer_cap", "bf16_gemm"))
    assert table[["stage", "launches", "products_ms", "all_ms"]].values.tolist() == [
        ["indexer_cap", 7, 1.5, 2.4],
        ["bf16_gemm", 5, 2.0, 2.0],
    ]
    assert step.products(_lab_with(), ("indexer_cap",))[0].empty


def test_the_pictures_draw_what_they_are_given():
    assert roofline_picture.roofline(baseline.intensities()).axes
    assert roofline_picture.repeated_reads().axes
    with pytest.raises(ValueError, match="shown"):
        roofline_picture.repeated_reads(heads=2)
    assert tile_picture.option_bars(budget.campaign_budget()).axes
    mixes = {
        "simt": machine_code.mix(_compiled("simt", 1, 16, 4, fma=9)),
        "mma": machine_code.mix(_compiled(tensor=3)),
    }
    assert machine_code.compared(mixes).axes and machine_code.bars(mixes["simt"], "simt").axes
    with pytest.raises(ValueError, match="2"):
        machine_code.compared({"simt": pd.DataFrame()})


CHAPTERS = sorted(BOOK.glob("0[123]-*.ipynb"))


def _cells(path):
    return [
        ("".join(cell["source"]), cell["cell_type"])
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_each_exercise_has_a_check_and_a_folded_solution(path):
    text = "\n".join(source for source, kind in _cells(path) if kind == "markdown")
    asked = re.findall(r":label: (ex-[\w-]+)", text)
    solved = re.findall(r"\{solution\} (ex-[\w-]+)\n:label: sol-[\w-]+\n:class: dropdown", text)
    assert len(asked) >= 4 and asked == solved
    checks = re.findall(
        r"exercises\.(check_\w+)\(", "\n".join(s for s, kind in _cells(path) if kind == "code")
    )
    assert len(checks) == len(asked) and all(hasattr(exercises, name) for name in checks)
