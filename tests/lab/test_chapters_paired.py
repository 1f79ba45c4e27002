"""The log of ideas timed in pairs: every idea is told once, and a share saved has the right sign."""

import matplotlib.pyplot as plt
import pytest

from kernels.lab.chapters import paired


def test_every_idea_says_what_it_changed_and_has_a_place_in_a_chapter():
    rows = paired.log()
    assert set(rows["idea"]) == set(paired.LABELS)
    assert (rows.groupby("idea")["change"].count() == 1).all()
    assert (rows["before_us"] > 0).all() and (rows["after_us"] > 0).all()
    assert not rows.duplicated(["idea", "batch", "heads", "topk", "swa_tokens"]).any()


def test_saved_is_positive_where_time_was_saved():
    rows = paired.log()
    assert ((rows["saved"] > 0) == (rows["after_us"] < rows["before_us"])).all()
    assert paired.saved("together", 1) == pytest.approx(100 * (1 - 6.01 / 8.28))
    assert paired.saved("prefetch_l2", 1) < 0
    assert paired.saved("prefetch_l2", 64, heads=64) > paired.saved("prefetch_l2", 64, heads=8)
    for batch in (64, 7):
        with pytest.raises(ValueError, match="pairs in paired_attempts.csv"):
            paired.saved("prefetch_l2", batch)


def test_ideas_come_in_the_order_asked_for_with_their_evidence():
    found, evidence = paired.ideas("wide_loads", "together")
    assert list(dict.fromkeys(found["idea"])) == ["wide_loads", "together"]
    assert evidence.kind == "recorded" and evidence.device == "NVIDIA H200"
    with pytest.raises(KeyError, match="accepted"):
        paired.ideas("magic")


def test_dots_that_are_close_stand_in_different_lines():
    assert paired.lines([0, 5, 10], apart=5) == [0, 0, 0]
    assert paired.lines([0, 1, 2, 5, 6], apart=5) == [0, 1, 2, 0, 1]


def test_the_figure_has_a_dot_a_shape():
    found, evidence = paired.ideas("shifts", "bytes_as_operands")
    fig = paired.figure(found, evidence)
    [axes] = fig.axes
    assert sorted(text.get_text() for text in axes.texts) == sorted(found["batch"].astype(str))
    assert [label.get_text() for label in axes.get_yticklabels()] == list(dict.fromkeys(found["label"]))
    plt.close(fig)
