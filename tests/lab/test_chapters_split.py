"""Chapters 4 and 5: grids and policies, poisoned cases, replays, merges."""

import math

import pandas as pd
import pytest
import torch

from kernels.lab.chapters import (
    batch_invariance,
    merging,
    overlap,
    per_head_split,
    rank_heads,
    replay,
    split_cases,
    split_figures,
    split_policy,
    step_times,
)
from kernels.lab.evidence import missing
from kernels.lab.records import schema
from kernels.sparse_mla.tiles import plain_tile


@pytest.mark.parametrize(
    ("batch", "splits", "blocks", "waves"), [(1, 8, 16, 1), (16, 6, 192, 2), (32, 3, 192, 2), (64, 2, 256, 2)]
)
def test_the_campaigns_grid(batch, splits, blocks, waves):
    row = split_policy.grid_table((batch,), ("campaign",)).iloc[0]
    assert (row["splits"], row["blocks"], row["waves"]) == (splits, blocks, waves)


def test_the_default_never_starts_a_second_wave_where_one_is_enough():
    table = split_policy.grid_table(policies=("unsplit", "default")).pivot(index="batch", columns="policy")
    assert (table["waves"]["default"] <= table["waves"]["unsplit"]).all()
    assert (table["blocks"]["default"] >= table["blocks"]["unsplit"]).all()


def test_grids_in_words():
    words = split_policy.in_words(split_policy.grid_table((16,))).iloc[0]
    assert words["campaign"] == "6 → 192 (2)" and words["unsplit"] == "32 (1)"


def test_the_tuned_rung_serves_every_batch():
    found = split_policy.tuned_table()
    assert list(found["batch"]) == list(split_policy.BATCHES) and (found["blocks"] >= found["batch"]).all()


def test_cost_counts_waves_tiles_and_merging():
    assert split_policy.cost(1, 1, 2, 16, 188) == split_policy.START_UP + 16
    two = split_policy.cost(2, 1, 2, 16, 188)
    assert two == split_policy.START_UP + 8 + split_policy.MERGE + split_policy.PARTIAL * 4 / 188
    assert split_policy.cost(6, 16, 2, 16, 188) > split_policy.cost(
        5, 16, 2, 16, 188
    )  # a wave of four blocks
    with pytest.raises(ValueError, match="tiles: got 0"):
        split_policy.cost(1, 1, 1, 0, 188)


def test_best_splits_is_the_cheapest():
    for batch, groups, tiles, sms in split_policy.SHAPES[::17]:
        best = split_policy.best_splits(batch, groups, tiles, sms)
        assert 1 <= best <= tiles
        lowest = min(split_policy.cost(s, batch, groups, tiles, sms) for s in range(1, min(64, tiles) + 1))
        assert split_policy.cost(best, batch, groups, tiles, sms) == lowest


def test_an_unknown_policy_is_named():
    with pytest.raises(ValueError, match="'clever'"):
        split_policy.splits_of("clever", 1)


def test_blocks_and_filled_places_agree():
    blocks, filled = split_policy.blocks_grid((1, 6), (1, 16), head_groups=2, sm_count=188)
    assert blocks.loc[16, 6] == 192 and filled.loc[16, 6] == pytest.approx(100 * 192 / 376)


def test_case_is_poisoned_and_lengths_change_in_place():
    made = split_cases.case("cpu", 2, 4, 32)
    pointer = made.topk_length.data_ptr()
    split_cases.set_lengths(made, [0, 5])
    assert made.topk_length.data_ptr() == pointer and made.topk_length.tolist() == [0, 5]
    assert made.kv_cache[-1].eq(split_cases.POISON).all()
    out, lse = split_cases.reference(made)
    assert (out[0] == 0).all() and torch.isinf(lse[0]).all() and torch.isfinite(out[1]).all()


def test_errors_see_a_wrong_empty_row():
    want = torch.ones(1, 2, 4).double(), torch.full((1, 2), math.inf).double()
    assert split_cases.errors(torch.ones(1, 2, 4), torch.zeros(1, 2), *want)[1] == math.inf


def test_split_k_is_right_on_poisoned_rows():
    found = split_cases.correctness("cpu", (1, 7))
    assert found["output_error"].max() < 3e-3 and found["lse_error"].max() < 1e-4


def test_one_plan_serves_all_lengths():
    found = replay.replay_table("cpu")
    assert found["rows_wrong"].sum() == 0 and found["blocks"].nunique() == 1
    assert found["output_error"].iloc[0] == found["output_error"].iloc[-1]


def test_folding_splits_into_the_batch():
    made = split_cases.case("cpu", 2, 2, 32, [32, 20])
    folded = per_head_split.fold(made, 4)
    assert folded.indices.shape == (8, 8)
    assert folded.topk_length.tolist() == [8, 8, 8, 8, 8, 8, 4, 0]
    with pytest.raises(ValueError, match="num_splits: got 5"):
        per_head_split.fold(made, 5)


def test_merge_of_folded_rows_skips_empty_parts():
    out = torch.stack([torch.ones(1, 4), torch.full((1, 4), 9.0)])
    merged, lse = per_head_split.merge(out, torch.tensor([[0.5], [math.inf]]), 2)
    assert torch.equal(merged, torch.ones(1, 1, 4).double()) and lse.item() == 0.5


def test_the_per_head_kernel_split_is_right():
    output_error, lse_error = per_head_split.correctness("cpu")
    assert output_error < 3e-3 and lse_error < 1e-4


def test_bits_follow_the_splits():
    found = batch_invariance.bits("cpu").set_index("mode")
    assert found.loc["batch-invariant", "differing"] == 0
    assert found.loc["planned by shape", "differing"] > 0


def test_the_price_of_invariance_has_one_number_of_splits():
    found = batch_invariance.price()
    assert found["fixed_splits"].nunique() == 1 and found["planned_splits"].nunique() > 1


def test_rank_heads_counts_rows_of_the_products():
    found = rank_heads.counts()
    assert found["useful"].iloc[-1] == pytest.approx(12.5) and found["mma_rows"].iloc[0] == 16
    assert found["query_output_kb"].iloc[-1] == 8 * found["query_output_kb"].iloc[0]


def measured(**columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return schema.frame([{"status": "ok", **row} for row in rows])


def test_per_head_times_over_the_unsplit_grid():
    rows = measured(batch=[1, 1, 16], num_splits=[1, 8, 1], median_us=[80.0, 60.0, 900.0])
    found = per_head_split.over_whole(rows)
    assert found.loc[1, 8] == 0.75 and found.loc[16, 1] == 1
    assert per_head_split.over_whole(schema.frame([])).empty


def test_padding_ratio():
    rows = measured(
        impl=["auto", "auto"], heads=[8, 64], batch=[1, 1], tile_class=["sm120"] * 2, median_us=[5.0, 20.0]
    )
    assert rank_heads.padding_ratio(rows) == {"batch 1, sm_120 tiles": 0.25}
    assert rank_heads.padding_ratio(schema.frame([])) == {}


def test_identities_hold_to_rounding():
    found = merging.identities()
    assert len(found) >= 7 and found["output_error"].max() < 1e-12 and found["lse_error"].max() < 1e-12


def test_a_sink_per_split_is_wrong():
    assert merging.sink_per_split() > 1e-3


def test_merging_nothing_gives_the_contracts_empty_row():
    out, lse = merging.merge(torch.full((2, 3), math.nan).double(), torch.full((2,), -math.inf).double())
    assert (out == 0).all() and lse == math.inf


def test_scratch_types_differ_only_by_rounding():
    found = merging.scratch_errors("cpu", (1, 3))
    assert found[["bf16", "fp32"]].max(axis=None) < 4e-3
    assert found["bf16"].iloc[1] > found["fp32"].iloc[1]


def test_combine_cases_are_right():
    found = merging.combine_cases("cpu")
    assert found["output_error"].max() < 3e-3 and found["lse_error"].max() < 1e-4


def test_traffic_follows_from_the_shapes():
    row = merging.traffic({16: 6}).iloc[0]
    assert row["scratch_mb"] == pytest.approx(16 * 64 * 6 * (1024 + 4) / 1e6)
    assert row["kv_mb"] == pytest.approx(16 * 512 * 584 / 1e6)
    assert merging.traffic({16: 1})["scratch_mb"].iloc[0] == 0


def test_the_models_layers_never_move_more_than_the_uniform_count():
    found = merging.model_step_mb()
    assert found["step"] == pytest.approx(found["swa"] + found["c4"] + found["c128"])
    assert found["step"] <= 43 * merging.traffic({16: 6})["both_ways_mb"].iloc[0]


@pytest.mark.slow
def test_dependent_launch_is_in_the_ptx():
    found = overlap.instructions(plain_tile("split_k", 64)).set_index(["kernel", "overlap"])
    assert (found.loc[(slice(None), True), :] == 1).all(axis=None)
    assert (found.loc[(slice(None), False), :] == 0).all(axis=None)


def test_pictures_with_and_without_data():
    sweep = measured(batch=[1, 1, 16], num_splits=[1, 8, 1], median_us=[40.0, 10.0, 50.0])
    marks = {"campaign": {1: 8}, "default": {1: 16}}
    for figure in (
        split_figures.sm_map(split_policy.grid_table((1, 64))),
        split_figures.split_map(sweep, marks),
        split_figures.split_map(schema.frame([]), marks, missing("nothing")),
        overlap.timeline(),
    ):
        assert figure.axes


class Asked:
    def __init__(self, frame):
        self.frame = frame

    def results(self, name):
        if self.frame is None:
            raise KeyError(name)
        return self.frame, missing("a test")


def test_step_times_without_a_decode_step():
    rows, evidence = step_times.times(Asked(None))
    assert rows.empty and not evidence.available
    assert step_times.milliseconds(rows, 64) == {}
    assert step_times.waterfall_picture({}, evidence).axes and step_times.over_batch(rows, evidence).axes


def test_step_times_over_the_configured_context():
    frame = measured(
        op=["decode_step"] * 4, stage=["baseline"] + ["indexer_cap"] * 3, batch=[64, 64, 64, 16],
        max_context=[8192, 8192, 1048576, 1048576], median_us=[100e3, 60e3, 63e3, 45e3],
    )  # fmt: skip
    rows, evidence = step_times.times(Asked(frame))
    table = step_times.across_contexts(rows, "indexer_cap")
    assert table.values.tolist() == [[64, 60.0, 63.0, 1.05]]
    assert step_times.across_contexts(rows, "baseline").empty
    assert (
        step_times.over_context(rows, evidence, 64).axes and step_times.over_context(rows, evidence, 2).axes
    )


def test_step_times_take_the_widest_configuration():
    frame = measured(
        op=["decode_step"] * 3, stage=["baseline", "baseline", "indexer_cap"], batch=[64] * 3,
        max_context=[131072, 1048576, 1048576], median_us=[100e3, 900e3, 45e3],
    )  # fmt: skip
    rows, evidence = step_times.times(Asked(frame))
    found = step_times.milliseconds(rows, 64)
    assert found == {"baseline": 900.0, "indexer_cap": 45.0}
    assert step_times.ratio(found, "baseline", "indexer_cap") == 20.0
    assert step_times.ratio(found, "mma", "indexer_cap") is None
    assert isinstance(rows, pd.DataFrame) and step_times.waterfall_picture(found, evidence).axes
