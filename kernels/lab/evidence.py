"""The kind of evidence behind a figure, a table or a number in prose, and how the reader sees it.

Five kinds exist, see `KINDS`. A number that is exact arithmetic (a count of bytes or blocks) needs none.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

KINDS = {
    "measured": "timed in this execution, on this machine",
    "recorded": "timed earlier on a GPU, read from data/runs",
    "compiled": "read from the kernel compiled in this execution",
    "predicted": "computed by a stated model",
    "published": "the campaign's articles or another public source, named",
}
MARKS = {"measured": "●", "recorded": "◐", "compiled": "■", "predicted": "◇", "published": "❝"}
NOT_RECORDED = "not recorded yet"


@dataclass(frozen=True)
class Evidence:
    """Where a result comes from.

    kind: one of `KINDS`. device: its name, or None. date_utc: "2026-11-29", or None. commit: short hash, or
    None. note: one clause for the reader, e.g. the source of a published figure. stale: why the record no
    longer describes the kernels beside it, or None. available: False when there is nothing to show yet.
    """

    kind: str
    device: str | None = None
    date_utc: str | None = None
    commit: str | None = None
    note: str | None = None
    stale: str | None = None
    available: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is not a kind of evidence; accepted: {', '.join(KINDS)}")

    def line(self) -> str:
        """The caption line, e.g. 'Recorded on NVIDIA H200 · 2026-11-29 · commit abc1234'."""
        if not self.available:
            return f"Not recorded yet · {self.note}" if self.note else "Not recorded yet"
        joint = {
            "measured": " on ",
            "recorded": " on ",
            "compiled": " for ",
            "predicted": " for ",
            "published": ": ",
        }
        head = self.kind.capitalize()
        if self.kind == "published":
            head += joint["published"] + (self.note or "source not named")
        elif self.device:
            head += joint[self.kind] + self.device
        parts = [head, self.date_utc, f"commit {self.commit}" if self.commit else None]
        if self.kind != "published":
            parts.append(self.note)
        if self.stale:
            parts.append(f"stale: {self.stale}")
        return " · ".join(part for part in parts if part)

    @property
    def mark(self) -> str:
        """A one-character sign of the kind, the same in every figure and table."""
        return MARKS[self.kind] if self.available else "○"

    def html(self) -> str:
        """The caption line as an inline HTML span, for captions of tables."""
        from html import escape

        classes = ["evidence", f"evidence-{self.kind if self.available else 'missing'}"]
        if self.stale:
            classes.append("evidence-stale")
        return f'<span class="{" ".join(classes)}">{self.mark} {escape(self.line())}</span>'

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dict, for the status page."""
        return asdict(self)


def published(source: str) -> Evidence:
    """Evidence for a figure quoted from a public source.

    source: the name that the reader can look up, e.g. 'the campaign, article 3'.
    """
    return Evidence("published", note=source)


def compiled(target: str = "sm_120", note: str | None = None) -> Evidence:
    """Evidence for what was read from the compiled kernel in this execution, with today's date and commit."""
    return Evidence("compiled", target, _today(), _commit(), note)


def predicted(device: str, note: str | None = None) -> Evidence:
    """Evidence for a model's output, with today's date and commit.

    note: the model and its validated error, e.g. 'wave model, median error 9 %'.
    """
    return Evidence("predicted", device, _today(), _commit(), note)


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


@cache
def _commit() -> str | None:
    from kernels.lab.records import source

    return source.git_commit()


def missing(reason: str) -> Evidence:
    """Evidence for a measurement that nobody has recorded yet."""
    return Evidence("recorded", note=reason, available=False)


def in_prose(value: Any, fmt: str = "{}", evidence: Evidence | None = None, show_kind: bool = True) -> str:
    """The text that a glued number shows, with its kind of evidence.

    value: anything `fmt` formats, or None when it does not exist. fmt: a format string such as '{:.1f} µs'.
    evidence: None for exact arithmetic. Without a value the text is 'not recorded yet'.
    """
    if (
        value is None
        or (isinstance(value, float) and value != value)
        or (evidence and not evidence.available)
    ):
        return NOT_RECORDED
    text = fmt.format(value)
    return f"{text} ({evidence.kind})" if evidence is not None and show_kind else text


def glue(
    name: str, value: Any, fmt: str = "{}", evidence: Evidence | None = None, show_kind: bool = True
) -> str:
    """Store a computed number under `name`, so that prose prints it with `{glue:text}`.

    name: unique in the book, e.g. 'ch01-ratio'. Returns the text. Outside a notebook nothing else happens; in
    one that is opened by hand, where prose shows names only, the number is shown below the cell.
    """
    text = in_prose(value, fmt, evidence, show_kind)
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return text
    if get_ipython() is not None:
        # What myst_nb.glue(name, text, display=False) emits; a GPU box may lack myst_nb.
        prefix = "application/papermill.record/"
        by_hand = "BOOK_BUILD_DIR" not in os.environ  # the runner sets it for the chapters that become pages
        shown = {"text/plain": f"{name}: {text}"} if by_hand else {}
        display(
            {f"{prefix}text/plain": repr(text), **shown},
            raw=True,
            metadata={"scrapbook": {"name": name, "mime_prefix": prefix}},
        )
    return text
