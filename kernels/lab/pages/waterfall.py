"""The campaign as one picture: what each stage takes off the decode step, from the newest record that holds it.

Drawn for README.md, once for each theme, and for the introduction. Without such a record there is no picture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from kernels.lab import records
from kernels.lab.chapters import step_times
from kernels.lab.evidence import Evidence
from kernels.lab.figures import style
from kernels.lab.records import Record, place

PART = "waterfall"
THEMES = ("light", "dark")
BATCH = 64  # the articles' concurrency; where it is not recorded, the largest batch that is
MARKER = "% generated: waterfall"
GREY, LIGHTER = 0.15, 0.2  # the spread of channels below which a colour is a grey; the way to white
COLOUR = re.compile(r"#[0-9a-f]{6}\b")


@dataclass(frozen=True)
class Campaign:
    """The step's milliseconds at each recorded stage of the campaign, at one batch and context."""

    milliseconds: dict[str, float]
    batch: int
    context: int
    evidence: Evidence

    @property
    def caption(self) -> str:
        """One sentence: the shape, and the factor between the first and the last stage."""
        first, *_, last = self.milliseconds.values()
        return (
            f"One decode step at batch {self.batch}, configured for {self.context:,} tokens: "
            f"{style.look(next(iter(self.milliseconds))).label} to "
            f"{style.look(next(reversed(self.milliseconds))).label}, {first / last:.1f} times."
        )

    @property
    def description(self) -> str:
        """The picture in words."""
        values = ", ".join(
            f"{style.look(stage).label} {value:,.1f}" for stage, value in self.milliseconds.items()
        )
        return f"Waterfall of the decode step's milliseconds: {values}. {self.evidence.line()}."


def campaign(record: Record | None = None) -> Campaign | None:
    """What the newest record of a decode step holds of the campaign's stages; None where that is no story."""
    record = record or records.newest(step_times.EXPERIMENT)
    if record is None:
        return None
    rows = step_times.usable(record.rows(step_times.EXPERIMENT))
    for batch in sorted(rows["batch"].unique(), key=lambda batch: (batch != BATCH, -batch)):
        found = step_times.milliseconds(rows, batch)
        if len(found) >= 2:
            context = int(step_times.at(rows, batch)["max_context"].iloc[0])
            return Campaign(found, int(batch), context, record.evidence())
    return None


def picture(found: Campaign, theme: str = "light") -> str:
    """The waterfall as SVG on a transparent ground."""
    with matplotlib.rc_context():
        style.apply()
        fig = step_times.waterfall_picture(found.milliseconds, found.evidence)
        text = style.svg(fig, found.description)
        plt.close(fig)
    return COLOUR.sub(lambda match: darkened(match[0]), text) if theme == "dark" else text


def darkened(colour: str) -> str:
    """The colour for a dark page: greys turn their lightness over, colours get a little lighter."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    if max(channels) - min(channels) < GREY:
        return matplotlib.colors.to_hex([0.06 + 0.9 * (1 - sum(channels) / 3)] * 3)
    return matplotlib.colors.to_hex([channel + LIGHTER * (1 - channel) for channel in channels])


def files(found: Campaign | None) -> dict[Path, str | None]:
    """The README's pictures and their texts; None for one that must not exist."""
    folder = place.root() / "data" / "pictures"
    return {folder / f"waterfall-{theme}.svg": picture(found, theme) if found else None for theme in THEMES}


def block(found: Campaign | None = None) -> str:
    """The Markdown between the README's markers: the picture for the reader's theme; nothing without a record."""
    found = found or campaign()
    if found is None:
        return ""
    light, dark = (f"data/pictures/waterfall-{theme}.svg" for theme in THEMES)
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img src="{light}" alt="{found.description}" width="720">\n'
        "</picture>\n\n"
        f"{found.caption} {found.evidence.line()}."
    )


def write_introduction(staged: Path, manifest: dict[str, Any]) -> None:
    """Put the picture in the place of the marker line of the staged introduction, where a record allows it.

    staged: the folder that Sphinx reads. manifest: unused.
    """
    page = Path(staged) / "book" / "intro.md"
    found = campaign()
    if found is None or not page.is_file():
        return
    text = page.read_text(encoding="utf-8")
    if MARKER not in text.splitlines():
        raise ValueError(f"{page.name}: no line {MARKER!r}; the picture goes in its place")
    place.write_text(page.with_name("waterfall.svg"), picture(found))
    figure = (
        f":::{{figure}} waterfall.svg\n:name: fig-campaign\n:alt: {found.description}\n\n{found.caption}\n:::"
    )
    page.write_text(text.replace(MARKER, figure, 1), encoding="utf-8")
