"""The kind of evidence is always visible, and an absent number is never printed as one."""

import re

import pytest

from kernels.lab import evidence
from kernels.lab.evidence import Evidence


def test_recorded_line_names_device_date_and_commit():
    line = Evidence("recorded", "NVIDIA H200", "2026-11-29", "abc1234").line()
    assert line == "Recorded on NVIDIA H200 · 2026-11-29 · commit abc1234"


def test_stale_and_note_join_the_line():
    line = Evidence("recorded", "NVIDIA H200", note="chain timer", stale="the kernels have changed").line()
    assert line.endswith("chain timer · stale: the kernels have changed")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (evidence.published("vllm #54929"), "Published: vllm #54929"),
        (Evidence("compiled", "sm_120"), "Compiled for sm_120"),
        (Evidence("predicted", "RTX PRO 6000", note="error 9 %"), "Predicted for RTX PRO 6000 · error 9 %"),
        (evidence.missing("no run"), "Not recorded yet · no run"),
    ],
)
def test_lines_of_the_other_kinds(given, line):
    assert given.line() == line


@pytest.mark.parametrize("given", [evidence.compiled(note="n"), evidence.predicted("sm_120", "n")])
def test_what_this_execution_finds_names_date_and_commit(given):
    parts = given.line().split(" · ")
    assert re.fullmatch(r"(Compiled|Predicted) for sm_120", parts[0])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", parts[1])
    assert given.commit is None or parts[2] == f"commit {given.commit}"
    assert parts[-1] == "n"


def test_every_kind_has_a_mark_of_its_own():
    assert set(evidence.MARKS) == set(evidence.KINDS)
    assert len(set(evidence.MARKS.values())) == len(evidence.KINDS)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind='guessed'.*measured"):
        Evidence("guessed")


def test_html_escapes_and_flags_stale():
    span = Evidence("recorded", "<GPU>", stale="x").html()
    assert "&lt;GPU&gt;" in span and "evidence-stale" in span and "<GPU>" not in span


@pytest.mark.parametrize("value", [None, float("nan")])
def test_absent_number_says_so(value):
    assert evidence.in_prose(value, "{:.1f}", Evidence("recorded")) == "not recorded yet"


def test_missing_evidence_hides_the_value():
    assert evidence.in_prose(3.0, "{}", evidence.missing("no run")) == "not recorded yet"


def test_number_in_prose_carries_its_kind():
    assert evidence.in_prose(14.68, "{:.1f} µs", Evidence("recorded")) == "14.7 µs (recorded)"
    assert evidence.in_prose(64, "{}×") == "64×"


def test_glue_without_a_notebook_returns_the_text():
    assert evidence.glue("x", 2, "{} blocks") == "2 blocks"


@pytest.mark.parametrize("by_hand", [True, False])
def test_glue_shows_the_number_only_where_no_page_is_made(monkeypatch, by_hand):
    import IPython
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    monkeypatch.delenv("BOOK_BUILD_DIR", raising=False)
    if not by_hand:
        monkeypatch.setenv("BOOK_BUILD_DIR", "_build")
    evidence.glue("x", 2, "{} blocks")
    assert shown[0]["application/papermill.record/text/plain"] == "'2 blocks'"
    assert shown[0].get("text/plain") == ("x: 2 blocks" if by_hand else None)
