"""The analytic budget against hand arithmetic, and its comparison against compilers that are made up here."""

import dataclasses

import pytest

from kernels.lab import budget, budget_compare
from kernels.lab.compile import Compiled


def _compiled(need, shared_bytes, registers, spill=0):
    tile = {"block_h": need.block_h, "block_t": need.block_t, "num_warps": need.num_warps}
    return Compiled(
        "sparse_mla",
        "mma",
        tile,
        "sm_120",
        {},
        num_warps=need.num_warps,
        shared_bytes=shared_bytes,
        registers=registers,
        max_threads=need.threads,
        stack_bytes=0,
        spill_store_bytes=spill,
        spill_load_bytes=0,
    )


def test_the_parts_of_a_tile_are_the_textbook_ones():
    need = budget.tile_budget(32, 64, 8)
    assert need.shared == {
        "query": 32 * 1024,
        "key_tile": 64 * 1024,
        "value_view": 0,
        "probabilities": 32 * 64 * 2,
        "row_reduction": 4 * 32 * 8,
        "pipelining": 0,
    }
    assert need.registers["accumulator"] == 32 * 512 / 256
    assert need.registers_low < need.registers_high


def test_fewer_than_16_heads_cost_as_much_as_16():
    assert budget.tile_budget(8, 32).shared == budget.tile_budget(16, 32).shared


def test_another_stage_adds_gathered_bytes_and_frees_their_registers():
    one, two = budget.tile_budget(16, 32), budget.tile_budget(16, 32, num_stages=2)
    assert two.shared_bytes - one.shared_bytes == 32 * 576
    assert two.registers["raw_bytes"] == 0 < one.registers["raw_bytes"]


def test_the_campaigns_sum_is_128_kb_and_does_not_fit():
    rows = {row["option"]: row for row in budget.campaign_budget()}
    first = rows["64 heads, 64 tokens"]
    assert first["query_bytes"] == first["key_bytes"] == 65_536
    assert first["killed_by"] == "shared memory" and first["left_bytes"] < -29_696
    # 32 tokens would just fit by K and Q alone, 98,304 bytes of 101,376; P and the row reduction break it.
    narrow = rows["smaller BLOCK_T: 32"]
    assert narrow["query_bytes"] + narrow["key_bytes"] == 98_304 <= 101_376 < narrow["shared_bytes"]
    assert rows["smaller BLOCK_T: 16"]["fits"] and rows["fewer heads: 32, 32 tokens"]["fits"]
    # Q in registers moves the problem: 64 heads of 512 numbers are more than a thread's 255.
    assert rows["Q in registers"]["killed_by"] == "registers"
    # Staging adds a buffer, it does not shrink the working set.
    assert rows["staging: two stages of 16"]["key_bytes"] == 2 * rows["smaller BLOCK_T: 16"]["key_bytes"]


def test_the_map_says_what_kills_a_tile_and_how_many_fit():
    rows = {(r["block_h"], r["block_t"], r["num_warps"]): r for r in budget.tile_map()}
    assert len(rows) == 18
    assert rows[64, 64, 8]["killed_by"] == "shared memory" and rows[64, 64, 8]["blocks"] == 0
    alive = rows[16, 16, 4]
    assert alive["killed_by"] is None
    assert alive["blocks"] == min(
        alive["blocks_by_shared"], alive["blocks_by_registers"], alive["blocks_by_warps"]
    )


def test_the_map_of_compiled_tiles_keeps_failures_as_rows():
    need = budget.tile_budget(16, 32, 8)
    good, spilling = _compiled(need, 24_576, 200), _compiled(need, 24_576, 255, spill=8)
    broken = dataclasses.replace(good, error="OutOfResources", shared_bytes=None, registers=None)
    rows = budget.tile_map(compiled=[good, spilling, broken])
    assert [row["killed_by"] for row in rows] == [None, "spill", "compiler"]
    assert rows[0]["blocks"] == 1 and rows[2]["reason"] == "OutOfResources"


@pytest.mark.parametrize(
    "names",
    [
        ["operand layouts"],
        ["one block at a time", "rope kept"],
        ["query in registers"],
        ["operand layouts", "reuse"],
        [],
    ],
)
def test_moves_that_were_made_are_found_again(names):
    need = budget.tile_budget(32, 32, 8)
    shared = need.shared_bytes + sum(budget_compare.moves(need)[name] for name in names)
    picked, residual = budget_compare.explain_shared(need, shared)
    assert (set(picked), residual) == (set(names), 0)


def test_what_no_move_explains_stays_a_residual():
    need = budget.tile_budget(32, 32, 8)
    found = budget_compare.compare(need, _compiled(need, need.shared_bytes + 150_000, 100))
    assert not found.explained and found.residual > 4096


@pytest.mark.parametrize(
    ("registers", "spill", "category"),
    [("low", 0, "within"), (16, 0, "below"), (255, 0, "above"), (255, 8, "spilled")],
)
def test_registers_fall_into_a_category(registers, spill, category):
    need = budget.tile_budget(32, 32, 8)
    registers = need.registers_low if registers == "low" else registers
    found = budget_compare.compare(need, _compiled(need, need.shared_bytes, registers, spill))
    assert found.category == category and budget_compare.CATEGORIES[category] in found.explanation


def test_another_tile_is_refused():
    need = budget.tile_budget(32, 32, 8)
    with pytest.raises(ValueError, match="another|accepted is the budget's"):
        budget_compare.compare(budget.tile_budget(16, 32, 8), _compiled(need, 1, 16))
    for bad in ({"block_t": 48}, {"block_h": 0}, {"query_in": "L2"}, {"num_stages": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            budget.tile_budget(**({"block_h": 16, "block_t": 32} | bad))
