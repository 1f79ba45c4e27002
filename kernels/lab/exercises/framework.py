"""What every exercise shares: a verdict that never raises, shown in plain words with a picture.

A check is a function of the reader's answer, decorated with `exercise`. It raises `Wrong` at the first
failing case, or returns one sentence of praise, possibly with a drawing. The decorator turns both into a
`Result`, prints it and draws it.
"""

from __future__ import annotations

import functools
import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from kernels.lab.exercises.limits import TimeUp, time_limit

NOT_ATTEMPTED = "not attempted yet"

Drawing = Callable[[], tuple[Any, str]]
"""A function that returns a matplotlib figure and its text alternative."""


class Wrong(Exception):
    """The answer is wrong.

    Attributes:
        what: what is wrong, one sentence. case: the inputs of the first failing case, in words. expected,
        got: as text, where there is something to compare. hint: fits the mistake. draw: a `Drawing`.
    """

    def __init__(
        self, what: str, *, case=None, expected=None, got=None, hint=None, draw: Drawing | None = None
    ):
        super().__init__(what)
        self.what, self.case, self.expected, self.got = what, case, expected, got
        self.hint, self.draw = hint, draw


@dataclass(frozen=True)
class Praise:
    """What a right answer shows: a sentence, and a `Drawing` if there is something to see."""

    what: str
    draw: Drawing | None = None


@dataclass(frozen=True)
class Result:
    """The verdict on an answer.

    Attributes:
        exercise: the check's name. passed: the answer is right. attempted: there was an answer. what: the
        verdict in a sentence. case, expected, got, hint: of the first failing case, or None. figure: the
        drawing, or None. alt: its text alternative.
    """

    exercise: str
    passed: bool
    attempted: bool = True
    what: str = ""
    case: str | None = None
    expected: str | None = None
    got: str | None = None
    hint: str | None = None
    figure: Any = None
    alt: str | None = None

    def __bool__(self) -> bool:
        return self.passed

    def text(self) -> str:
        """The verdict as the reader sees it, a line a fact."""
        if not self.attempted:
            return f"{self.exercise}: {NOT_ATTEMPTED}"
        lines = [f"{'correct' if self.passed else 'not yet'} ({self.exercise}). {self.what}"]
        facts = (("case", self.case), ("expected", self.expected), ("got", self.got), ("hint", self.hint))
        lines += [f"  {name + ':':<10}{value}" for name, value in facts if value is not None]
        return "\n".join(lines)

    def _ipython_display_(self) -> None:
        """Show nothing: the check has, and a cell that ends in the check must not show it twice."""


@dataclass(frozen=True)
class Exercise:
    """An entry of the catalogue: the check, its chapter (1 to 6), its place there, and what it asks for."""

    check: Callable[..., Result]
    chapter: int
    order: int
    takes: str
    task: str

    @property
    def name(self) -> str:
        return self.check.__name__


CATALOGUE: list[Exercise] = []


def exercise(chapter: int, takes: str, task: str):
    """Make a check of one answer out of a function that raises `Wrong` or returns `Praise`.

    chapter: 1 to 6. takes: "a number", "a function" or "a kernel". task: one sentence for the catalogue.
    The decorated check takes the answer or None, never raises for it, and returns a `Result`.
    """

    def decorate(check: Callable[[Any], Praise]) -> Callable[..., Result]:
        @functools.wraps(check)
        def run(answer: Any = None) -> Result:
            result = judge(check, answer)
            show(result)
            return result

        order = 1 + sum(entry.chapter == chapter for entry in CATALOGUE)
        CATALOGUE.append(Exercise(run, chapter, order, takes, task))
        return run

    return decorate


def judge(check: Callable[[Any], Praise], answer: Any) -> Result:
    """Run a check on an answer, without showing anything."""
    name = check.__name__
    if answer is None:
        return Result(name, passed=False, attempted=False, what=NOT_ATTEMPTED)
    try:
        with warnings.catch_warnings(), time_limit():
            warnings.simplefilter("ignore")  # the interpreter's NumPy warns of every inf - inf on its way
            praise = check(answer)
    except Wrong as wrong:
        figure, alt = _draw(wrong.draw)
        return Result(
            name, False, True, wrong.what, wrong.case, wrong.expected, wrong.got, wrong.hint, figure, alt
        )
    except TimeUp as late:
        return Result(name, False, what=str(late), hint="Look for a loop whose end is never reached.")
    except Exception as error:  # noqa: BLE001 - an answer of an unforeseen form must not stop the notebook
        return Result(
            name,
            passed=False,
            what=f"The check could not use this answer: {type(error).__name__}: {error}",
            hint="Compare the form of your answer (arguments, shapes, what is returned) with the "
            "exercise's text.",
        )
    figure, alt = _draw(praise.draw)
    return Result(name, passed=True, what=praise.what, figure=figure, alt=alt)


def _draw(draw: Drawing | None) -> tuple[Any, str | None]:
    if draw is None:
        return None, None
    try:
        import matplotlib

        from kernels.lab.figures import style

        with matplotlib.rc_context():  # a chapter sets the style once; a check must not depend on it
            style.apply()
            return draw()
    except Exception as error:  # noqa: BLE001 - the words are the verdict; a picture of odd values may fail
        return None, f"(no picture: {type(error).__name__})"


def show(result: Result) -> None:
    """Print the verdict and display its picture; in a plain script the picture's text alternative."""
    print(result.text())
    if result.figure is None:
        return
    import matplotlib.pyplot as plt

    in_notebook, display = _notebook()
    if in_notebook:
        display({"text/html": as_html(result), "text/plain": result.alt}, raw=True)
    else:
        print(f"  {'picture:':<10}{result.alt}")
    plt.close(result.figure)


def as_html(result: Result) -> str:
    """The picture as an image element with its text alternative, readable on a dark page too."""
    from kernels.lab.figures import style

    data = b64encode(style.svg(result.figure).encode()).decode()
    # The fragment lets a style sheet recognise a vector image by the end of its address.
    address = f"data:image/svg+xml;base64,{data}#exercise.svg"
    return f'<img src="{address}" alt="{escape(result.alt or "")}" style="max-width:100%;background:#fff">'


def _notebook():
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return False, None
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel"), display
