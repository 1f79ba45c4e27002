"""The appendix on the staged rung: its log and verdicts, the bits, the serialised products, the targets."""

import dataclasses
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from kernels.lab.chapters import (
    early_use,
    edited,
    packed_bytes,
    peer_targets,
    plan_map,
    redesign,
    serialised,
    short_signs,
    staged,
)
from kernels.lab.compile import compile_many, make_request, sass
from kernels.lab.evidence import Evidence
from kernels.lab.figures.diagrams.labour import divided_labour, schedule
from kernels.sparse_mla import _dequantize
from kernels.sparse_mla.launch import CONSUMER_REGISTERS
from kernels.sparse_mla.tiles import Tile

PTX = _dequantize.PACKED.value
RECORDED = Evidence("recorded", device="NVIDIA H200", date_utc="2026-11-29")


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


@pytest.fixture
def log(monkeypatch):
    """A log of three attempts whose ratios are round numbers."""

    def use(**ratios):
        rows = [
            {"attempt": name, "change": name, "batch": batch, "topk": 512, "median_us": 10 * ratio,
             "flash_mla_us": 10.0, "device": "card", "date": "2026-01-01"}
            for name, by_batch in ratios.items() for batch, ratio in by_batch.items()
        ]  # fmt: skip
        monkeypatch.setattr(staged, "_read", lambda name: pd.DataFrame(rows))
        monkeypatch.setattr(staged, "NAMES", {name: name for name in ratios})

    return use


def test_the_log_is_complete():
    rows = staged.attempts()
    assert set(rows["attempt"]) == set(staged.NAMES) and rows["attempt"].iloc[0] == "plain"
    assert (rows[["median_us", "flash_mla_us"]] > 0).all(axis=None)
    assert not rows.duplicated(["attempt", "batch", "topk"]).any()
    assert staged.evidence_of(rows).kind == "recorded"


def test_an_attempt_that_is_not_told_is_named(log, monkeypatch):
    log(first={1: 2.0}, second={1: 1.0})
    monkeypatch.setattr(staged, "NAMES", {"first": "first"})
    with pytest.raises(ValueError, match="second"):
        staged.attempts()


def test_gain_is_a_geometric_mean_over_shared_batches(log):
    log(first={1: 2.0, 16: 1.0}, second={1: 1.0, 16: 1.0, 64: 9.0}, third={128: 1.0})
    assert staged.gain("second", "first") == pytest.approx(1 - math.sqrt(0.5))
    with pytest.raises(ValueError, match="share no batch"):
        staged.gain("third", "first")


def test_gain_compares_equal_numbers_of_candidates(log, monkeypatch):
    log(first={1: 2.0}, second={1: 1.0})
    wider = staged._read("").assign(topk=2048, median_us=[10.0, 20.0])
    rows = pd.concat([staged._read(""), wider])
    monkeypatch.setattr(staged, "_read", lambda name: rows)
    assert staged.gain("second", "first") == pytest.approx(0)
    assert not staged.fastest_of_its_run("second", ("first",))


def test_verdicts_compare_with_the_best_so_far(log):
    log(first={1: 2.0}, worse={1: 3.0}, better={1: 1.0}, same={1: 1.01}, middle={1: 1.5})
    found = staged.verdicts().set_index("attempt")
    assert list(found["verdict"]) == ["the start", "lost", "won", "even", "lost"]
    assert list(found["against"])[1:] == ["first", "first", "better", "better"]


def test_fastest_of_its_run(log):
    log(mine={1: 1.0, 2: 1.0}, rival={1: 1.1, 2: 1.2}, other={1: 0.9, 2: 1.2})
    assert staged.fastest_of_its_run("mine", ("rival",))
    assert not staged.fastest_of_its_run("mine", ("rival", "other"))


def test_evidence_of_two_cards_is_refused():
    rows = pd.DataFrame({"device": ["a", "b"], "date": ["2026-01-01"] * 2})
    with pytest.raises(ValueError, match="one each"):
        staged.evidence_of(rows)


def test_under_the_roofline():
    rows = staged.far_from_roof().set_index("batch")
    assert rows.loc[64, "over_roof"] == pytest.approx(rows.loc[64, "median_us"] / rows.loc[64, "roof_us"])
    assert (rows["over_roof"] > 1).all() and (rows["share_of_bandwidth"] < 100).all()


def test_counters_add_up_and_an_unknown_one_is_named():
    shares = staged.waiting()
    assert set(shares.index) == {"tables_serialised", "tables"}
    assert np.allclose(shares.sum(axis=1), 100, atol=0.5)
    assert set(staged.counters()["attempt"]) <= set(staged.NAMES)
    assert not staged.counters().duplicated(["attempt", "counter"]).any()
    with pytest.raises(KeyError, match="occupancy"):
        staged.counter("occupancy")


def test_figures_name_what_they_show():
    rows = staged.attempts()
    fig = staged.attempts_figure(rows, RECORDED, bars=(0.77, 1.0))
    labels = [text.get_text() for text in fig.axes[0].get_yticklabels()]
    assert labels == list(staged.NAMES.values()) and len(fig.axes[0].lines) == rows["batch"].nunique() + 2
    fig = staged.waiting_figure(RECORDED)
    assert [text.get_text() for text in fig.axes[0].get_yticklabels()] == ["tables, serialised", "tables"]


def test_tiles_in_words():
    assert staged.tile_words(Tile(64, 64, 8, 2, True)) == "64×64, 8 warps, 2 buffers"
    assert staged.tile_words({"block_h": 32, "block_t": 16, "num_warps": 4}) == "32×16, 4 warps"


def test_a_cpu_checks_nothing():
    assert staged.correctness("cpu").empty


# The bits


def test_the_text_is_exact():
    table = packed_bytes.exactness(PTX)
    assert table["count"].sum() == 65_536
    assert table["exact"].iloc[0] == table["count"].iloc[0] > 60_000
    assert table["exact"].iloc[1] == 0 and table["nearest"].iloc[1] == table["count"].iloc[1]
    low, high = packed_bytes.exact_scales(PTX)
    assert low < 64 and high > 192


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("0x7b807b80", "0x7b007b00"),
        ("0x07f007f0", "0x07e007e0"),
        ("0x5d5c", "0x5d4c"),
        ("0x87f087f0", "0x07f007f0"),
        ("0x80008000;", "0;"),
    ],
)
def test_a_wrong_constant_shows(right, wrong):
    assert right in PTX
    try:
        table = packed_bytes.exactness(PTX.replace(right, wrong))
    except AssertionError:
        return  # a byte came out differently in another place of the word
    assert table["exact"].iloc[0] < table["count"].iloc[0]


def test_both_pairs_the_short_way_are_the_same_bits_and_spill():
    assert packed_bytes.exactness(short_signs.BOTH_PAIRS).equals(packed_bytes.exactness(PTX))
    found = short_signs.compare().set_index(["caches", "version"])
    for caches in short_signs.SHAPES:
        shipped, both = (found.loc[caches, version] for version in short_signs.VERSIONS)
        assert both["integer"] < shipped["integer"] and shipped["spill_bytes"] == 0
    assert both["spill_bytes"] > 0


def test_the_definition_is_torchs():
    bytes_ = torch.arange(256, dtype=torch.uint8)
    want = bytes_.view(torch.float8_e4m3fn).double().numpy()
    assert packed_bytes.same(packed_bytes.numbers(np.arange(256)), want).all()


def test_rounding_is_torchs():
    values = np.array([1.00390625, 1.01171875, -1.0, 0.0, 3e38, 1e-40, 9.2e-41])
    want = torch.from_numpy(values).float().to(torch.bfloat16).double().numpy()
    assert np.array_equal(packed_bytes.to_float(packed_bytes.to_bfloat16(values)), want)


def test_an_instruction_that_is_unknown_is_named():
    with pytest.raises(ValueError, match="lop3"):
        packed_bytes.run("lop3.b32 low, $4, $5, 0;", np.uint32(0), np.uint32(0))


def test_the_selectors_upper_half_does_not_matter():
    words = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    scale = np.uint32(130 << 7 | 130 << 23)
    want = packed_bytes.run(PTX, words, scale)
    for late in (1, 0x8000, 0xFFFF):
        assert np.array_equal(packed_bytes.run(PTX, words, scale, late), want)


def test_steps_of_a_byte():
    found = packed_bytes.steps(PTX, 0b1_1000_000)
    assert list(found["value"]) == [-2.0, -(2.0**-119), -2.0]
    assert found["bits"].iloc[0] == "1 1000 000"


# The serialised products


def test_an_edit_must_find_its_lines_once():
    source = "\n".join(old for old, _ in serialised.EDITS)
    assert edited.edited(source, serialised.EDITS).count("gl.sum(total, 1)") == 1
    for text, times in (("nothing of it", 0), (source + source, 2)):
        with pytest.raises(ValueError, match=f"occurs {times} times"):
            edited.edited(text, serialised.EDITS)


def test_an_edit_may_leave_out_what_lies_between():
    old = f"b({edited.ANYTHING})"
    assert edited.edited("a(1)\nb(2,\n  3)\nc(4)", [(old, "d")]) == "a(1)\nd\nc(4)"


def test_a_compiler_that_fails_is_named():
    with pytest.raises(RuntimeError, match="SyntaxError"):
        edited.compile_versions(
            [{"_overlap": [("LAUNCH = gl.constexpr(", "LAUNCH = = gl.constexpr(")]}], Tile(16, 32, 4)
        )


def test_waits_and_the_warning():
    assert serialised.waits("WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\nWARPGROUP.ARRIVE ;\n") == 1
    log = "ptxas info : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n"
    assert serialised.warning(log) == "C7515: wgmma.mma_async instructions are serialized due to x"
    assert serialised.warning("ptxas info : 11 bytes gmem") == ""


def test_the_shipped_kernel_waits_rarely_and_the_edited_one_after_every_product():
    pair = serialised.compile_pair().set_index("version")
    shipped, carried = pair.loc["reduced in each tile"], pair.loc["carried as a tile"]
    assert shipped["warning"] == "" and 1 <= shipped["waits"] <= 4 < shipped["products"]
    assert carried["waits"] > shipped["waits"] and carried["warning"].startswith("C")


# The compiled loops


@pytest.fixture(scope="module")
def rungs():
    return staged.compile_rungs()


@pytest.fixture(scope="module")
def divided():
    tiles = (("sm_90", early_use.TILE), ("sm_120", Tile(64, 16, 8, 2, False, 4)))
    return compile_many([make_request("sparse_mla", "staged", tile, target) for target, tile in tiles])


def test_the_loops_by_hand(rungs):
    table = staged.loop_table(rungs)
    by_hand = table[table["rung"] == "staged"]
    assert (table["spill_bytes"] == 0).all()
    assert np.allclose(by_hand["issued_over_needed"].dropna(), 1)
    assert (
        by_hand["waits"].max() in (1, 2, 3, 4) and (by_hand.query("target == 'sm_120'")["waits"] == 0).all()
    )
    plain = table.query("rung == 'split_k' and target == 'sm_120'").iloc[0]
    assert by_hand["other_loads"].max() < plain["other_loads"]
    tiles = table.drop_duplicates(["target", "rung", "tile"])
    assert len(tiles) == len(rungs) and len(table) == len(rungs) + (table["warps"] == "producers").sum()
    assert by_hand.query("target == 'sm_120'")["shared_kib"].max() * 1024 <= 101_376
    with pytest.raises(RuntimeError, match="no luck"):
        staged.loop_table([dataclasses.replace(rungs[0], error="no luck")])


def test_a_block_with_producers_has_two_loops(divided):
    table = staged.loop_table(divided).set_index(["target", "warps"])
    for target in ("sm_90", "sm_120"):
        consumers, producers = table.loc[(target, "consumers")], table.loc[(target, "producers")]
        assert consumers["products"] > 0 and consumers["issued_over_needed"] == pytest.approx(1)
        assert producers["products"] == 0 and np.isnan(producers["issued_over_needed"])
    assert table.loc[("sm_90", "consumers"), "waits"] > 0 == table.loc[("sm_90", "producers"), "waits"]
    with pytest.raises(RuntimeError, match="no producers' loop"):
        staged.loop_table([dataclasses.replace(divided[0], loops=(divided[0].main_loop,))])


def test_registers_are_handed_from_producers_to_consumers():
    shares = staged.register_shares()
    assert shares["producers"] < shares["launched"] < shares["consumers"] == CONSUMER_REGISTERS
    tile = early_use.TILE
    used = shares["producers"] * tile.producer_warps + shares["consumers"] * tile.num_warps
    assert used * 32 <= 65_536
    with pytest.raises(RuntimeError, match="given set"):
        staged.register_shares(Tile(32, 32, 8))


LOOP = """
        /*0000*/  LDG.E R9, desc[UR4][R2.64] ;
.L_x_1:
        /*0010*/  STS.128 [R1], R4 ;
        /*0020*/  @P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/  LDG.E.64 R8, desc[UR4][R6.64] ;
        /*0040*/  IMAD.MOV.U32 R5, RZ, RZ, R20 ;
        /*0050*/  PRMT R3, R9.reuse, 0x7632, R10 ;
        /*0060*/  @P1 BRA `(.L_x_1) ;
        /*0070*/  EXIT ;
"""


def test_first_uses_of_a_loop():
    body = early_use.producers_body(LOOP)
    assert [one.address for one in body] == list(range(0x10, 0x70, 0x10))
    found = early_use.first_uses(body)
    assert list(found["load"]) == ["LDG.E.128", "LDG.E.64"] and list(found["place"]) == [1, 2]
    assert list(found["between"]) == [0, 1]  # R6 is a part of the first load; R9 of the second
    assert list(found["same_pass"]) == [True, True]
    later = [one for one in body if one.mnemonic != "LDG.E.64"]
    found = early_use.first_uses(later)
    assert list(found["between"]) == [3] and not found["same_pass"].any()
    unread = [one for one in later if one.opcode not in ("STS", "PRMT")]
    assert early_use.first_uses(unread)["between"].isna().all()
    with pytest.raises(ValueError, match="no loop without products"):
        early_use.producers_body(LOOP.replace("LDG", "LDS"))


def test_an_address_is_read_and_a_destination_is_not():
    instructions, _ = sass.parse(LOOP)
    store, load, prmt = instructions[1], instructions[2], instructions[5]
    assert (
        early_use.reads(store) == {1, 4} and early_use.reads(load) == {2} and early_use.reads(prmt) == {9, 10}
    )


def test_words_are_not_read_in_the_pass_that_asked_for_them():
    words, piece, early, loose = early_use.compare().itertuples(index=False)
    assert (
        words.loads == piece.loads == early.loads > early.same_pass > words.same_pass == piece.same_pass == 0
    )
    assert early.shortest < words.shortest and piece.median < words.median
    assert loose.shortest < words.shortest and loose.median < words.median


def test_a_tile_waits_for_its_buffer_and_its_products_for_the_tile():
    found = schedule(6, 2, dequantise=1.0, multiply=3.0)
    assert found[0] == (0, 1, 1, 4) and found[1] == (1, 2, 4, 7)
    assert found[2][0] == found[0][3]  # the first buffer is free when its products are done
    assert [after[2] - before[2] for before, after in zip(found, found[1:], strict=False)] == [3.0] * 5
    slow = schedule(6, 2, dequantise=4.0, multiply=3.0)
    assert [after[2] - before[2] for before, after in zip(slow, slow[1:], strict=False)] == [4.0] * 5
    in_turn = schedule(6, 1, dequantise=1.0, multiply=3.0)
    assert in_turn[-1][3] == 6 * 4.0
    with pytest.raises(ValueError, match="buffers"):
        schedule(1, 0, 1.0, 1.0)


def test_the_figure_names_both_groups():
    said = [text.get_text() for text in divided_labour(tiles=3).axes[0].texts]
    assert {"producers", "consumers", "full", "empty", "2: buffer 0"} <= set(said)


def test_the_redesign_has_numbers(rungs):
    plain, hand = (
        next(r for r in rungs if r.impl == i and r.target == "sm_120" and (r.block_h, r.block_t) == (32, 32))
        for i in ("split_k", "staged")
    )
    table = redesign.candidates(plain, hand)
    assert set(table["decision"]) == {"kept", "kept in plain Triton", "kept by hand", "rejected"}
    assert table["evidence"].str.contains(r"\d").all()
    assert redesign.query_registers(8, 32) == 128
    with pytest.raises(ValueError, match="num_warps=1"):
        redesign.query_registers(1, 32)


def test_dependent_launch_can_be_left_out():
    table = staged.dependent_launch(Tile(32, 32, 8)).set_index(["kernel", "overlap"])
    asked = table.xs(True, level="overlap")
    assert (asked["wait"] == 1).all()
    # The staged kernel can start the next one at two places; a number says at which
    assert asked["start the next"].to_dict() == {"staged": 2, "combine": 1}
    assert (table.xs(False, level="overlap") == 0).all(axis=None)


# The planner's table and the targets


def test_the_map_holds_every_choice():
    found = plan_map.table(512)
    assert not found.duplicated(["device_class", "heads", "batch"]).any()
    assert (found["blocks"] >= found["batch"]).all()
    labels = [plan_map.words(tile) for tile in set(found["tile"])]
    assert len(set(labels)) == len(labels), "each tile has its own words"
    assert plan_map.words(Tile(64, 64, 8, 2, True, 4)) == "64×64, 2 buffers, 8 warps, wgmma, 4 producers"
    fig = plan_map.figure(found)
    assert len(fig.axes) == 2 and sum(len(ax.texts) for ax in fig.axes) == len(found)
    cells = {(patch.get_facecolor(), patch.get_hatch()) for ax in fig.axes for patch in ax.patches}
    assert len(cells) == len(labels), "each tile has its own look"
    with pytest.raises(ValueError, match="candidates=7"):
        plan_map.table(7)


def _rows(**times):
    """Rows of one batch: impl or (impl, tile class, heads) to its time."""
    rows = []
    for name, by_batch in times.items():
        impl, kind, heads = {"auto_8": ("auto", "native", 8), "held": ("auto", "sm120", 64)}.get(
            name, (name, "native" if name != "simt" else "sm120", 64)
        )
        for batch, us in by_batch.items():
            rows.append({"impl": impl, "tile_class": kind, "heads": heads, "batch": batch, "timer": "chain",
                         "status": "ok", "median_us": us})  # fmt: skip
    return pd.DataFrame(rows)


def test_targets_have_a_source_and_a_limit():
    table = peer_targets.targets()
    assert table["id"].is_unique and set(table["experiment"]) <= set(peer_targets.EXPERIMENTS)
    assert (table["source"] == "project target").all() and (table["batch_from"] <= table["batch_to"]).all()
    assert {0.77, 1.0, 2.0} <= set(table["limit"]) and (table["limit"] > 0).all()


def test_ratios_are_judged_at_their_batches():
    rows = _rows(auto={1: 7.0, 64: 11.0}, held={1: 9.0}, flash_mla={1: 10.0, 64: 10.0}, simt={1: 70.0})
    found = peer_targets.ratios("ladder", rows).set_index(["id", "batch"])
    assert found.loc[("native-512-small", 1), "met"] and found.loc[("sm120-512-small", 1), "ratio"] == 0.9
    assert not found.loc[("native-512-large", 64), "met"]
    assert found.loc[("simt-1", 1), "ratio"] == pytest.approx(0.1)
    table = peer_targets.summary(found.reset_index())
    assert (table["met"] == "not recorded").sum() == len(table) - 4
    assert peer_targets.met_in_words(table) == "3 of 4"
    across = peer_targets.by_batch(found.reset_index())
    assert list(across["what"]) == list(
        dict.fromkeys(found.loc[found.index.get_level_values("id").str.match("native|sm120"), "what"])
    )
    for (name, batch), row in found.iterrows():
        if not name.startswith("simt"):
            assert across.set_index("what").loc[row["what"], str(batch)] == row["ratio"]


def test_few_heads_are_compared_with_many():
    rows = _rows(auto={64: 40.0}, auto_8={64: 12.0})
    found = peer_targets.ratios("heads", rows)
    assert list(found["id"]) == ["heads-8"] and found["ratio"].iloc[0] == pytest.approx(0.3)


def test_a_table_of_several_runs_names_the_other_commits():
    def run(commit):
        return pd.DataFrame(), Evidence("recorded", "NVIDIA H200", "2026-11-30", commit)

    same = {"ladder": run("abc1234"), "swa": run("abc1234")}
    assert peer_targets.evidence(same) == same["ladder"][1]
    several = same | {"heads": run("def5678"), "k2048": run("def5678")}
    assert (
        peer_targets.evidence(several).line().endswith("commit abc1234 · heads and k2048 at commit def5678")
    )


def test_without_a_record_nothing_is_met():
    empty = pd.concat([peer_targets.ratios(name, pd.DataFrame()) for name in peer_targets.EXPERIMENTS])
    assert peer_targets.by_batch(empty).empty
    table = peer_targets.summary(empty)
    assert (table["met"] == "not recorded").all() and peer_targets.met_in_words(table) is None
    failed = _rows(auto={1: 7.0}, flash_mla={1: 10.0}).assign(status="failed")
    assert peer_targets.ratios("ladder", failed).empty
