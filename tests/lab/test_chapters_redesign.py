"""Chapter 2's ideas for a better tile: the rules that keep or reject, the clock's column, the compiled numbers."""

import dataclasses

import pandas as pd
import pytest
import torch

from kernels.lab import experiments, timing, variants
from kernels.lab.chapters import redesign
from kernels.lab.experiments import Point, schema
from kernels.lab.experiments import redesign as points
from kernels.lab.variants.plan import VARIANTS
from kernels.sparse_mla import plan as planning

SMALL = {"heads": 4, "topk": 64, "tile_class": "sm120", "tile": (16, 32, 4, 1)}
NO_RANGE = pd.Series(dtype=float)


def _row(**changes):
    return {"impl": "x", "reasons": [], "rel_error": 1e-3, "per_pair": 5.0} | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "kept"),
        ({"per_pair": 8.0}, "rejected: more instructions"),
        ({"rel_error": 0.02}, "rejected: accuracy"),
        ({"reasons": ["spill: 4 bytes stored"], "rel_error": 0.02}, "rejected: spills"),
        ({"reasons": ["shared memory: 1 byte over"]}, "rejected: shared memory"),
        ({"impl": "narrow"}, "rejected: range"),
    ],
)
def test_the_first_rule_that_speaks_decides(changes, said):
    assert redesign.decision(_row(**changes), 8.0, pd.Series({"narrow": 1.0})) == said


def test_the_clocks_column_has_ratios_of_one_run_and_reasons():
    rows = pd.DataFrame(
        [("split_k", 1, 10.0), ("split_k", 16, 20.0), ("a", 1, 5.0), ("a", 16, 30.0), ("b", 1, None), ("b", 16, None)],
        columns=["impl", "batch", "median_us"],
    )  # fmt: skip
    rows["status"] = ["ok"] * 4 + ["failed"] * 2
    rows["reason"] = [""] * 4 + ["no such instruction"] * 2
    said = redesign.timed(rows)
    assert said["a"] == "0.50 / 1.50" and said["b"] == "no such instruction" and said["split_k"] == "1.00"
    assert redesign.timed(schema.frame([])).empty


@pytest.fixture(scope="module")
def found():
    return redesign.compile_variants()


def test_the_table_has_a_decision_for_every_idea(found):
    checked = pd.DataFrame({"impl": list(VARIANTS), "rel_error": [v.tolerance for v in VARIANTS.values()]})
    table = redesign.table(found, checked, NO_RANGE, pd.Series({"half": "0.9"})).set_index("impl")
    assert list(table.index) == ["split_k", "staged", *VARIANTS, "query_registers"]
    assert (table.loc[["split_k", "staged"], "decision"] == "–").all()
    assert table["decision"].iloc[2:].str.match("kept|rejected: ").all()
    assert table.loc["half", "time"] == "0.9" and table.loc["padded", "time"] == "–"
    assert (table["scaled"] > 0).equals(table.index.to_series().str.startswith("scaled"))
    # Two blocks compute the scores of the same heads and tokens
    assert table.loc["value_columns", "halves"] > 1.5 * table.loc["byte_tiles", "halves"]
    assert table.loc["padded", "halves"] > table.loc["byte_tiles", "halves"]


def test_a_kernel_without_its_loops_is_named(found):
    with pytest.raises(RuntimeError, match="byte_tiles for sm_120: 1 loops"):
        redesign.per_pair(found["byte_tiles"], parts=2)
    with pytest.raises(RuntimeError, match="no luck"):
        redesign.per_pair(dataclasses.replace(found["byte_tiles"], loops=(), error="no luck"))


def test_accuracy_on_a_cpu_is_within_every_class():
    checked = redesign.accuracy("cpu")
    assert list(checked["impl"]) == list(VARIANTS) and checked["right"].all()
    assert (checked["rel_error"] > 1e-4).all()


# The experiment


def test_points_compare_on_the_same_shapes():
    wanted = experiments.CATALOGUE["redesign"].points("quick")
    assert {point.batch for point in wanted} == {1, 16, 64}
    for batch in (1, 16, 64):
        mine = [point.impl for point in wanted if point.batch == batch]
        assert set(mine) == {"split_k", "staged", *VARIANTS} and mine.count("byte_tiles") == 2
    assert all((p.heads, p.topk, p.tile_class) == (64, 512, "sm120") for p in wanted)


def test_splits_follow_the_blocks_of_a_row():
    point = Point("sparse_mla_decode", "value_columns", 16)
    variant = VARIANTS["value_columns"]
    assert points.splits(variant, variant.tile, point, 132) == 132 // (16 * 2 * 2)
    assert points.splits(VARIANTS["half"], variant.tile, point, 132) == 132 // (16 * 2)


def test_from_points_to_valid_rows_and_a_failure_is_a_row(monkeypatch):
    decode = variants.decode

    def sometimes(name, **arguments):
        if name == "padded":
            raise RuntimeError("no such instruction in /usr/lib/x")
        out, lse = decode(name, **arguments)
        if name == "half":
            out += 1
        return out, lse

    monkeypatch.setattr(variants, "decode", sometimes)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(timing, "device_l2_bytes", lambda: 0)
    monkeypatch.setattr(timing, "chain", lambda calls, samples: timing.summarise([3.0, 4.0, 5.0]))
    names = ("split_k", "byte_tiles", "padded", "half", "scaled_scores")
    rows = experiments.measure_points(
        [Point("sparse_mla_decode", name, 1, num_splits=2, **SMALL) for name in names],
        build=lambda point, device: points.build(point, "cpu", sets=2, pool_tokens=256),
    )
    rows = [row | {"run_id": "r", "experiment": "redesign"} for row in rows]
    table = schema.validate(schema.frame(rows), "measurements").set_index("impl")
    assert list(table["status"]) == ["ok", "ok", "failed", "wrong", "ok"]
    assert "no such instruction" in table.loc["padded", "reason"]
    assert table.loc["scaled_scores", "tolerance"] == pytest.approx(VARIANTS["scaled_scores"].tolerance)
    assert table.loc["byte_tiles", "block_h"] == 16 and table.loc["byte_tiles", "num_splits"] == 2


def test_the_experiment_uses_its_own_builder(monkeypatch):
    asked = []
    monkeypatch.setattr(points, "build", lambda point, device: asked.append((point, device)) or 1 / 0)
    _, measure = experiments._find("redesign")
    rows = measure("quick")
    assert len(asked) == len(rows) == len(experiments.CATALOGUE["redesign"].points("quick"))
    assert {row["status"] for row in rows} == {"failed"} and "ZeroDivisionError" in rows[0]["reason"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_on_a_gpu_is_right_and_timed(name):
    rows = experiments.measure_points(
        [Point("sparse_mla_decode", name, 4, tile_class="sm120")], samples=7, build=points.build
    )
    capable = planning.device_of(torch.empty(0, device="cuda")).capability >= (8, 9)
    assert [row["status"] for row in rows] == ["ok"] or not capable, rows[0]["reason"]
