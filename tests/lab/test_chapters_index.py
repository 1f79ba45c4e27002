"""Chapter 6: counts, selections and the captured stride."""

import pytest

from kernels.lab.chapters import index_checks, index_cost


def test_uncapped_work_follows_the_configuration_and_the_others_do_not():
    table = index_cost.over_context().pivot(index="max_context", columns="impl", values="mbytes")
    assert table["capped"].nunique() == 1 and table["paged"].nunique() == 1
    assert table["uncapped"].iloc[-1] / table["uncapped"].iloc[0] == pytest.approx(128, rel=0.01)
    assert (table["paged"] < table["capped"]).all() and (table["capped"] <= table["uncapped"]).all()


def test_work_is_refused_or_counted_exactly():
    assert index_cost.work("paged", 2, 8192, 8192).parts["keys"] == 2 * 2048 * 132
    with pytest.raises(ValueError, match="context: got 8192"):
        index_cost.work("paged", 1, 8192, 4096)
    with pytest.raises(ValueError, match="impl: got 'other'"):
        index_cost.work("other", 1, 1, 8)


def test_share_ladder_parts_and_tail():
    assert index_cost.useful_share(8192, 1 << 20) == pytest.approx(1 / 128)
    ladder = index_cost.ladder_table()
    assert ladder["cap_entries"].iloc[-1] == 262_144 and ladder["worst"].max() < 2
    parts = index_cost.parts_table()
    assert parts["mbytes"].sum() == pytest.approx(index_cost.work("uncapped", 1, 8192, 1 << 20).bytes / 1e6)
    assert index_cost.tail_bytes(64, 1 << 20) == 64 * 262_144 * 4


def test_every_indexer_selects_the_same_entries():
    found = index_checks.same_selection("cpu")
    assert index_checks.bit_equal(found, "bf16") and index_checks.bit_equal(found, "fp32")
    exact = found[found["product"] != "bf16"]
    assert (exact["shared"] == exact["selected"]).all() and found["logits_error"].max() < 1e-2


def test_a_narrowed_stride_is_right_in_row_0_only():
    found = index_checks.stride_trap("cpu")
    assert (found["kept"] == 1).all()
    assert found["repacked"].iloc[0] == 1 and (found["repacked"].iloc[1:] < 0.5).all()


def test_the_diagram_draws():
    assert index_checks.stride_diagram().axes
