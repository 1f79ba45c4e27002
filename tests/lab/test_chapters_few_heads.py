"""The kernel for 8 heads in the book: who holds which bytes, what a candidate costs, where the warps were found."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from kernels.lab.chapters import few_heads
from kernels.lab.figures.diagrams import operand_lanes
from kernels.sparse_mla import _copied_rows


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    plt.close("all")


def test_a_lane_holds_16_bytes_of_two_candidates_and_8_bytes_of_every_fourth():
    fetched = few_heads.lanes_of(_copied_rows.quarters_layout(32), 4, group=0)
    taken = few_heads.lanes_of(_copied_rows.pairs_layout(32, 4), 2, group=0)
    assert fetched.shape == (16, 16) and taken.shape == (32, 16)
    for lanes, each in ((fetched, 8), (taken, 16)):
        assert (np.bincount(lanes.ravel(), minlength=32) == each).all()
    for lane in range(32):
        rows, words = np.nonzero(fetched == lane)
        assert set(rows) == {lane // 4, lane // 4 + 8} and set(words) == set(
            range(4 * (lane % 4), 4 * (lane % 4) + 4)
        )
        rows, words = np.nonzero(taken == lane)
        assert set(rows) == set(range(lane % 4, 32, 4)) and set(words) == {lane // 4 * 2, lane // 4 * 2 + 1}
    fig = operand_lanes(fetched, taken, lane=9)
    dark = [patch for patch in fig.axes[0].patches if patch.get_width() == 4]
    assert len(dark) == 2 * 4 + 4 * 2


def test_bytes_as_operands_cost_less_a_candidate():
    found = few_heads.compare()
    assert len(found) == 4
    for _, (before, after) in (
        (t, rows.to_dict("records")) for t, rows in found.groupby("target", sort=False)
    ):
        assert (before["kernel"], after["kernel"]) == ("heads as rows", "candidates as rows")
        for name in ("issued", "integer", "products", "shared", "barriers"):
            assert after[name] < before[name], name
        assert after["conversions"] > before["conversions"]
        assert before["asking"] == 0 < after["asking"] < after["issued"] / 2


def test_addresses_that_cannot_be_foreseen_cost_less():
    shipped, foreseen = few_heads.foreseen()
    assert 400 < shipped < foreseen - 10


def test_waits_are_part_of_the_samples():
    raw = pd.read_csv(few_heads.DATA)
    assert (raw[[*few_heads.WAITS, "issued"]].sum(axis=1) <= raw["samples"]).all()
    assert list(few_heads.samples()["section"]) == list(raw["section"])
    assert few_heads.evidence().kind == "recorded" and few_heads.evidence().device == "NVIDIA H200"
