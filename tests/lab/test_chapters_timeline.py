"""A block's steps by the clock, the figure of them, and the wide tile beside the tiles before it."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from kernels.lab.chapters import plan_map, timeline, wide
from kernels.sparse_mla.tiles import FEW_HEADS_TILES, Tile


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    plt.close("all")
    timeline.steps.cache_clear()


def test_steps_follow_one_another_to_the_end_of_the_block():
    rows = timeline.steps()
    assert (rows["length"] > 0).all()
    for _, mine in rows.groupby("kernel"):
        assert (
            mine["start"].iloc[0] == 0
            and (mine["start"].iloc[1:].values == mine["end"].iloc[:-1].values).all()
        )
        assert mine["moment"].iloc[-1] == "written" and mine["blocks"].nunique() == 1
        assert (mine["batch"] * mine["splits"] == mine["blocks"]).all()
    whole = timeline.lengths()
    assert (whole[list(timeline.COLOURS)].sum(axis=1) == whole["whole"]).all()
    assert whole.loc["one wide tile", "whole"] < whole.loc["tile by tile", "whole"]
    assert timeline.evidence().kind == "recorded" and timeline.evidence().device == "NVIDIA H200"


def test_a_moment_that_is_not_known_is_named(monkeypatch):
    rows = pd.read_csv(timeline.DATA / "block_timeline.csv").replace("tables", "lunch")
    timeline.steps.cache_clear()
    monkeypatch.setattr(timeline.pd, "read_csv", lambda path: rows)
    with pytest.raises(ValueError, match="lunch"):
        timeline.steps()


def test_notes_have_a_meaning_and_the_device_of_the_timeline():
    notes = pd.read_csv(timeline.DATA / "block_notes.csv")
    assert notes["name"].is_unique and notes["about"].notna().all()
    found = timeline.evidence()
    assert set(notes["device"]) == {found.device} and set(notes["date"]) == {found.date_utc}
    assert timeline.note("scores_32") < timeline.note("scores_64") < timeline.note("scores_128")
    with pytest.raises(KeyError, match="accepted"):
        timeline.note("lunch")


def test_the_figure_names_every_kind_once_and_counts_the_tiles():
    fig = timeline.figure()
    assert [text.get_text() for text in fig.legends[0].get_texts()] == list(timeline.COLOURS)
    said = [text.get_text() for text in fig.axes[0].texts]
    assert [one for one in said if one.startswith("tile")] == ["tile 1", "tile 2", "tile 3", "tile 1"]
    assert len(fig.axes[0].patches) == len(timeline.steps())


def test_the_wide_tile_in_three_shapes():
    table = wide.compare().set_index("kernel")
    assert list(table["candidates"]) == [96, 80, 160, 320]
    one = table.loc["one wide tile"]
    assert one["registers"] < table["registers"].iloc[0] and one["in_loop"] == 0 == one["spill_bytes"]
    assert (
        table.loc["a wide tile and a rest", "in_loop"] == 0 < table.loc["a loop over wide tiles", "in_loop"]
    )
    assert plan_map.words(wide.TILE) == "64×128, 8 warps, wgmma, wide"
    assert plan_map.words(Tile(64, 64, 8, 1, True)) == "64×64, 8 warps, wgmma"
    assert plan_map.words(Tile(*FEW_HEADS_TILES[1])) == "8×32, 8 warps, candidates as rows, in pairs"
