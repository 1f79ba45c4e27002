"""Numbered, theme-native tables: a MyST `table` directive as Markdown, readable in JupyterLab too."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from kernels.lab.evidence import Evidence

LONG = 12
Format = str | Callable[[object], str]


def cell(value: object, fmt: Format | None = None) -> str:
    """One value as the text of a Markdown table cell; missing values show as an en dash."""
    if value is None or (not isinstance(value, (list, tuple, dict)) and pd.isna(value)):
        return "–"
    if fmt is None:
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, float):
            text = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
        elif isinstance(value, int) or hasattr(value, "__index__"):
            text = f"{int(value):,}"
        else:
            text = str(value)
    else:
        text = fmt(value) if callable(fmt) else fmt.format(value)
    return text.replace("|", "\\|").replace("\n", " ")


def table(
    df: pd.DataFrame,
    name: str,
    caption: str,
    evidence: Evidence | None = None,
    formats: Mapping[str, Format] | None = None,
    columns: Mapping[str, str] | None = None,
    sortable: bool | None = None,
    stacked: bool = False,
) -> str:
    """The table as MyST Markdown.

    df: one row a row. name: the label that `{numref}` uses. caption: one sentence. evidence: shown after the
    caption. formats: column of df -> format string or function. columns: column of df -> heading with its
    unit; chooses and orders the columns. sortable: None sorts by a click where the table has more than 12
    rows. stacked: on a phone each row is a card, for wide tables of words.
    """
    for argument, given in (("formats", formats), ("columns", columns)):
        unknown = [key for key in given or {} if key not in df.columns]
        if unknown:
            raise KeyError(f"{argument} names {unknown}, which df lacks; accepted: {list(df.columns)}")
    headings = dict(columns) if columns else {column: str(column) for column in df.columns}
    formats = formats or {}
    numeric = {column: pd.api.types.is_numeric_dtype(df[column]) for column in headings}
    sortable = len(df) > LONG if sortable is None else sortable
    line = " ".join(caption.split())
    if evidence is not None:
        line += f" {evidence.html()}"
    out = [f":::{{table}} {line}", f":name: {name}"]
    classes = ["sortable"] * sortable + ["stacked"] * stacked
    if classes:
        out.append(f":class: {' '.join(classes)}")
    out += ["", "| " + " | ".join(cell(text, str) for text in headings.values()) + " |"]
    out.append("|" + "|".join("--:" if numeric[column] else ":--" for column in headings) + "|")
    for _, row in df.iterrows():
        out.append("| " + " | ".join(cell(row[column], formats.get(column)) for column in headings) + " |")
    if df.empty:
        empty = ["*not recorded yet*" if evidence and not evidence.available else "*no rows*"]
        out.append("| " + " | ".join(empty + [""] * (len(headings) - 1)) + " |")
    return "\n".join([*out, "", ":::", ""])  # the empty line: a plain Markdown reader ends the table there
