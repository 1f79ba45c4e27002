"""The timeline of a pair of blocks: steps in order, of known kinds, and a bar for each."""

import matplotlib.pyplot as plt
import pytest

from kernels.lab.chapters import pair_timeline


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    plt.close("all")


def test_steps_follow_one_another():
    rows = pair_timeline.steps()
    assert list(dict.fromkeys(rows["who"])) == ["asking", "team 1", "team 2"]
    for _, mine in rows.groupby("who"):
        assert list(mine["begin"])[1:] == list(mine["end"])[:-1]
        assert (mine["length"] > 0).all() and (mine["latest"] >= mine["end"]).all()
    for team, tiles in (("team 1", {1, 3, 5, 7}), ("team 2", {2, 4, 6, 8})):
        assert set(rows[(rows["who"] == team) & (rows["tile"] > 0)]["tile"]) == tiles
    for tile in range(1, 9):
        team = f"team {2 - tile % 2}"
        assert pair_timeline.when("asking", "asking", tile) < pair_timeline.when(
            team, "scores", tile, "begin"
        )


def test_a_step_that_is_not_there():
    with pytest.raises(KeyError, match="0 steps"):
        pair_timeline.when("asking", "scores", 1)


def test_every_step_has_its_bar():
    fig = pair_timeline.figure()
    assert len(fig.axes[0].patches) == len(pair_timeline.steps())
    assert pair_timeline.evidence().kind == "recorded" and pair_timeline.evidence().device == "NVIDIA H200"
