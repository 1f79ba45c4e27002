"""Every exercise: silent without an answer, satisfied by its solution, and helpful with a wrong answer."""

import importlib.util
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from kernels.lab import exercises  # noqa: E402
from kernels.lab.exercises import combining, framework, limits, running  # noqa: E402
from tests.lab import exercise_kernels as wrong_kernels  # noqa: E402
from tests.lab import exercise_mistakes as mistakes  # noqa: E402

ROOT = Path(__file__).parents[2]
CATALOGUE = exercises.catalogue()
NAMES = [entry.name for entry in CATALOGUE]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"^exercises\.(check_\w+)\((\w+)\)", re.MULTILINE)
PREAMBLE = """
import numpy as np
import torch
import triton
import triton.language as tl
from kernels.lab.chapters import split_policy
"""
SPOILERS = ("tl.where(", "torch.where(", "tl.load(", "def ", "-(-", "lambda")


def solution_of(entry):
    module = importlib.import_module(f"kernels.lab.exercises.solutions.chapter{entry.chapter}")
    return getattr(module, entry.name.removeprefix("check_"))


def is_helpful(result, words, printed):
    assert not result.passed and result.attempted
    assert printed.startswith(f"not yet ({result.exercise}).")
    assert result.what in printed and "could not use" not in printed
    if words is not None:
        assert result.hint and words in result.hint, result.text()
    for spoiler in SPOILERS:
        assert spoiler not in (result.hint or "")
    if result.figure is not None:
        assert result.alt and len(result.alt) > 40
        ElementTree.fromstring(b64decode(framework.as_html(result).split("base64,")[1].split("#")[0]))


def test_the_book_has_enough_of_them_in_every_chapter():
    chapters = [entry.chapter for entry in CATALOGUE]
    assert len(CATALOGUE) >= 24
    assert all(chapters.count(chapter) >= 4 for chapter in range(1, 7))
    assert all(any(e.chapter == c and e.takes != "a number" for e in CATALOGUE) for c in range(1, 7))
    assert set(NAMES) == {name for name in exercises.__all__ if name.startswith("check_")}


def test_the_page_of_exercises_lists_all_of_them_in_order():
    page = (ROOT / "book" / "exercises.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| {doc}")]
    chapters = {int(path.stem[:2]): path.stem for path in (ROOT / "book").glob("0*.ipynb")}
    assert rows == [[f"{{doc}}`{chapters[e.chapter]}`", e.task, e.takes, f"`{e.name}`"] for e in CATALOGUE]


@pytest.mark.parametrize("entry", CATALOGUE, ids=NAMES)
def test_nothing_happens_without_an_answer(entry, capsys):
    result = entry.check(None)
    assert capsys.readouterr().out == f"{entry.name}: not attempted yet\n"
    assert not result.passed and not result.attempted and result.figure is None


@pytest.mark.parametrize("entry", CATALOGUE, ids=NAMES)
def test_the_solution_passes_in_time(entry, capsys):
    start, open_before = time.process_time(), plt.get_fignums()
    result = entry.check(solution_of(entry))
    assert result.passed, result.text()
    assert capsys.readouterr().out.startswith("correct")
    assert time.process_time() - start < 10
    assert plt.get_fignums() == open_before


WRONG = [
    pytest.param(name, answer, words, id=f"{name}-{number}")
    for group in (mistakes.FUNCTIONS, wrong_kernels.KERNELS)
    for name, answers in group.items()
    for number, (answer, words) in enumerate(answers)
]


@pytest.mark.parametrize("name, answer, words", WRONG)
def test_a_wrong_answer_gets_the_hint_that_fits(name, answer, words, capsys):
    result = getattr(exercises, name)(answer)
    is_helpful(result, words, capsys.readouterr().out)


def test_every_check_has_a_wrong_answer_in_this_test():
    assert {*mistakes.FUNCTIONS, *wrong_kernels.KERNELS, "check_combine"} == set(NAMES)


@pytest.mark.parametrize("fault", wrong_kernels.FAULTS)
def test_a_wrong_combine_gets_the_hint_that_fits(fault, capsys, monkeypatch):
    """One kernel with a switch for its fault; the check sees the signature without the switch."""

    def launch(kernel, grid, arguments, meta, *, case, **options):
        kernel[grid](**arguments, **meta, FAULT=fault, **options)

    monkeypatch.setattr(combining, "launch", launch)
    result = exercises.check_combine(wrong_kernels.faulty_combine)
    is_helpful(result, wrong_kernels.COMBINE_HINTS[fault], capsys.readouterr().out)
    wrong_out = "out is right" not in result.what
    assert (result.figure is not None) == wrong_out


@pytest.mark.parametrize("chapter", range(1, 7))
def test_solutions_printed_in_a_chapter_pass_the_check_beside_them(chapter, tmp_path, capsys):
    """A solution is a folded block of Python under the cell whose check takes its name."""
    (source,) = (ROOT / "book").glob(f"{chapter:02}-*.ipynb")
    cells = ["".join(cell["source"]) for cell in json.loads(source.read_text())["cells"]]
    blocks = [block for text in cells if "{solution}" in text for block in BLOCK.findall(text)]
    module = tmp_path / f"printed_solutions_{chapter}.py"
    module.write_text(PREAMBLE + "\n\n".join(blocks))  # a kernel needs a file to be read from
    spec = importlib.util.spec_from_file_location(module.stem, module)
    printed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(printed)
    asked = [call for text in cells for call in CALL.findall(text)]
    assert {name for name, _ in asked} == {entry.name for entry in CATALOGUE if entry.chapter == chapter}
    for check, answer in asked:
        result = getattr(exercises, check)(getattr(printed, answer))
        assert result.passed, result.text()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", ["text", 7, [1, 2], object(), lambda: None, lambda **anything: anything])
def test_any_answer_ends_in_a_verdict(name, answer, capsys):
    result = getattr(exercises, name)(answer)
    assert not result.passed
    assert capsys.readouterr().out.startswith("not yet")


def test_an_endless_answer_is_stopped(monkeypatch, capsys):
    limit = limits.time_limit
    monkeypatch.setattr(framework, "time_limit", lambda: limit(0.2))
    result = exercises.check_redundancy(mistakes.endless)
    assert not result.passed and "stopped after" in capsys.readouterr().out


def test_an_exception_names_the_readers_line(capsys):
    def slip(heads, heads_per_program):
        return heads // (heads_per_program - heads_per_program)

    result = exercises.check_redundancy(slip)
    assert "ZeroDivisionError" in result.what and "heads_per_program - heads_per_program" in result.what
    assert result.case == "heads=64, heads_per_program=1"


def test_other_parameter_names_are_taken_by_position(capsys):
    assert exercises.check_redundancy(lambda h, g: -(-h // g)).passed
    assert exercises.check_redundancy(lambda heads_per_program, heads: -(-heads // heads_per_program)).passed


def test_a_kernel_cannot_write_unnoticed_past_its_buffer():
    buffer = running.Guarded((3, 2))
    assert buffer.broken() is None and buffer.tensor.isnan().all()
    buffer._storage[running.GUARD - 1] = 0.0
    assert buffer.broken() == "before"
    buffer = running.Guarded((3, 2))
    buffer._storage[running.GUARD + 6] = float("nan")
    assert buffer.broken() == "after"


def test_the_combine_truth_agrees_with_softmax_and_with_the_operator():
    torch.manual_seed(0)
    scores, values = torch.randn(2, 2, 12, dtype=torch.float64), torch.randn(12, 512, dtype=torch.float64)
    pieces = scores.split(4, -1)
    out = torch.stack([torch.softmax(p, -1) @ v for p, v in zip(pieces, values.split(4), strict=True)], 1)
    lse = torch.stack([torch.logsumexp(p, -1) for p in pieces], 1) / torch.log(torch.tensor(2.0).double())
    merged, natural = combining.merge(out, lse)
    torch.testing.assert_close(merged, torch.softmax(scores, -1) @ values)
    torch.testing.assert_close(natural, torch.logsumexp(scores, -1))


def test_checks_and_hints_do_not_import_the_solutions():
    program = (
        "import sys; from kernels.lab import exercises; exercises.check_combine(None); "
        "print([name for name in sys.modules if 'solutions' in name])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    folder = Path(exercises.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "import solutions" in path.read_text()
                or "exercises.solutions" in path.read_text()]  # fmt: skip


def test_a_result_as_the_last_line_of_a_cell_shows_nothing_more(capsys):
    result = exercises.check_redundancy(3)
    capsys.readouterr()
    assert result._ipython_display_() is None
    assert capsys.readouterr().out == ""
