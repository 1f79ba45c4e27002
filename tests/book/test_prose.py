"""No result is typed in prose.

A number in a page of book/ or in a notebook's markdown cell has to be one of these:

- computed: inside a role such as {glue:text}`name`, in code, or in mathematics (but not its decimals);
- cited: its sentence, table row or the table's caption holds a {cite} role;
- a constant of the model, the cache format, the hardware or the experiment plan, that data/constants.csv or
  data/devices.csv holds; before a unit of measurement (ms, %, GB/s, times ...), a constant with that unit;
- a count up to ten without a unit of measurement, or part of a name: chapter 3, article 2, sm_120, RTX 5090.

Where a number is rejected, glue it, cite it, or add the constant with its source to data/constants.csv.
"""

import csv
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for pattern in ("*.md", "*.ipynb") for path in (ROOT / "book").glob(pattern))
SMALL = 10

# As written in prose: the unit that constants hold. A unit that is not here is a count of things.
MEASURES = {
    "%": "%", "percent": "%", "×": "x", "x": "x", "times": "x",
    "ns": "ns", "µs": "us", "μs": "us", "us": "us", "microseconds": "us", "ms": "ms", "milliseconds": "ms",
    "s": "s", "seconds": "s", "minutes": "minutes", "hours": "hours", "tok/s": "tok/s", "tokens/s": "tok/s",
    "GB/s": "GB/s", "TB/s": "TB/s", "TFLOP/s": "TFLOP/s", "GFLOP/s": "GFLOP/s", "MFLOP": "MFLOP",
    "GFLOP": "GFLOP",
    "W": "W", "GHz": "GHz", "MHz": "MHz",
    "KB": "KB", "KiB": "KiB", "MB": "MB", "MiB": "MiB", "GB": "GB", "GiB": "GiB",
}  # fmt: skip
CITED = "⟦cited⟧"
CODE_DIRECTIVES = (
    "code",
    "code-cell",
    "code-block",
    "literalinclude",
    "math",
    "bibliography",
    "mermaid",
    "toctree",
)
NAMES = re.compile(
    r"\bsm_\d+[af]?\b|\bRTX(?: PRO)? \d+(?: Ti)?\b"
    r"|\b(?:Python|PyTorch|Triton|CUDA|Debian|Ubuntu|Jupyter Book|CC BY"
    r"|Apache-2|version|Version|torch|triton) ?\d[\d.x]*(?: to \d[\d.]*)?|#\d+"
    r"|\b(?:[Cc]hapters?|[Aa]rticles?|[Ss]tages?|[Ss]teps?|[Ee]xercises?|[Ss]ections?|[Pp]arts?|[Tt]ables?|[Ff]igures?|[Rr]ules?)"
    r" \d{1,2}\b(?:(?:, | to | and |–|-)\d{1,2}\b)*"
)
NUMBER = re.compile(
    r"(?<![\w.$#/])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?([KM]\b)?(?![\w])(?:-(?=[a-z]))?[ \u00a0]?"
    r"([A-Za-zµμ%×]+(?:/s)?)?"
)
NUMBER_WITH_UNIT = re.compile(r"(?<![\w.$#/])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?()(x|[KMGT]i?B|[µμmn]s|s|W)\b")
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+")


def constants(root=ROOT):
    """Value to the units that it has in data/constants.csv and data/devices.csv."""
    allowed: dict[float, set[str]] = {}
    for name in ("constants.csv", "devices.csv"):
        path = root / "data" / name
        if path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    try:
                        allowed.setdefault(float(row["value"]), set()).add(row["unit"])
                    except ValueError:
                        continue
    return allowed


def prose(text):
    """The text without code, directives' options, comments and links' paths; a cite role leaves a mark."""
    lines, fence, table_is_cited = [], None, False
    for line in text.splitlines():
        opening = re.match(r"\s*(`{3,}|~{3,}|:{3,})\s*(?:\{([\w:-]+)\})?", line)
        if fence:
            if line.strip().startswith(fence) and set(line.strip()) == {fence[0]}:
                fence = None
            continue
        if opening:
            mark, directive = opening.groups()
            if directive is None and set(line.strip()) != {mark[0]} or directive in CODE_DIRECTIVES:
                fence = mark
            # A directive's title or a table's caption is prose; what follows is, too.
            table_is_cited = directive == "table" and "{cite" in line
            lines.append(line[opening.end() :] if directive and directive not in CODE_DIRECTIVES else "")
        elif re.match(r"\s*(:[\w-]+:|%|---\s*$|\|?[-:| ]+\|?$)", line):
            lines.append("")
        else:
            lines.append(f"{line} {CITED}" if table_is_cited and line.lstrip().startswith("|") else line)
    text = "\n".join(lines)
    text = re.sub(r"<!--.*?-->|<[^<>\n]+>", " ", text, flags=re.DOTALL)
    text = re.sub(r"\{cite[\w:]*\}`[^`]*`", CITED, text)
    text = re.sub(r"\{[\w:-]+\}`[^`]*`", "role", text)
    text = re.sub(r"(`+)(?:.|\n)*?\1", "code", text)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", _decimals, text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"https?://\S+", " ", text)
    return re.sub(r"^\s*(?:\d+\.|[-*+])\s", "", text, flags=re.MULTILINE)


def _decimals(match):
    """Mathematics keeps its decimals, which are results more often than coefficients."""
    return " ".join(DECIMAL.findall(match.group()))


def sentences(text):
    """Pieces that one citation covers: a sentence, or a row of a table."""
    for block in re.split(r"\n\s*\n", prose(text)):
        rows = [line for line in block.splitlines() if line.lstrip().startswith("|")]
        yield from rows
        rest = " ".join(line.strip() for line in block.splitlines() if line not in rows)
        yield from re.split(r"(?<=[.!?;])\s+(?=[A-Z\[(*⟦])", rest)


def typed_numbers(text, allowed):
    """(number as typed, its sentence) for every number that is neither computed, cited nor a constant."""
    found = []
    for sentence in sentences(text):
        if CITED in sentence:
            continue
        bare = NAMES.sub("name", sentence)
        for match in [*NUMBER.finditer(bare), *NUMBER_WITH_UNIT.finditer(bare)]:
            whole, fraction, suffix, word = match.groups()
            value = float(whole.replace(",", "") + (fraction or ""))
            value *= {"K": 1024, "M": 1024**2}.get(suffix, 1)
            unit = MEASURES.get(word or "")
            count = value <= SMALL and not fraction
            # "three times" as 3 times is a count of occasions; 3x is a ratio.
            counted = count and (not unit or word == "times")
            fits = counted or (unit in allowed.get(value, ()) if unit else value in allowed)
            if not fits:
                shown = f"{whole}{fraction or ''}{suffix or ''}" + (f" {word}" if unit else "")
                found.append((shown, sentence.strip()))
    return found


def cells(path):
    """The markdown of a page: the file, or a notebook's markdown cells."""
    if path.suffix == ".md":
        return [path.read_text(encoding="utf-8")]
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_result_is_typed(path):
    allowed = constants()
    found = [
        f"{number!r} in: {sentence}"
        for text in cells(path)
        for number, sentence in typed_numbers(text, allowed)
    ]
    assert not found, "glue, cite, or add to data/constants.csv with a source:\n" + "\n".join(found)


ALLOWED = {64.0: {"heads"}, 99.0: {"KiB"}, 8192.0: {"tokens"}, 1048576.0: {"tokens"}, 188.0: {"SMs"}}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It takes 13.2 µs a call.", ["13.2 µs"]),
        ("It is 6.3x faster, or 6.3× or 2.1 times.", ["6.3 ×", "2.1 times", "6.3 x"]),
        ("Between 2.2–2.9 there is nothing.", ["2.2", "2.9"]),
        ("A share of 57 % is large.", ["57 %"]),
        ("All 64 heads, 99 KiB, 8K and 1M tokens on 188 SMs.", []),
        ("A 64-fold redundancy and 64 ms.", ["64 ms"]),
        ("It takes 4,828 ms, cited two sentences later. See {cite}`campaign2`.", ["4,828 ms"]),
        ("It takes 4,828 ms {cite}`campaign2`.", []),
        ("It takes {glue:text}`ch01-time` on a card.", []),
        ("The code `x = 13.2` and $2^{b - 127}$ are fine, $6.29$ is not.", ["6.29"]),
        ("```python\nx = 13.2\n```\nand 13.2", ["13.2"]),
        ("```{note}\nIt takes 13.2 ms.\n```", ["13.2 ms"]),
        ("```{code-cell}\nx = 13.2\n```", []),
        ("Chapter 12 on sm_120, an RTX 5090, Python 3.11, article 3, float64 and 8 splits.", []),
        (":::{table} Mine\n:name: x17\n\n| a |\n|--:|\n| 5350 |\n:::\n", ["5350"]),
        (":::{table} From {cite}`campaign2`\n:name: x17\n\n| a |\n|--:|\n| 5350 |\n:::\n4828", ["4828"]),
        ("Rounding gives 20 blocks.", ["20"]),
        ("[a link](page-450.html) and <img alt='450'>", []),
    ],
)
def test_the_finder(text, numbers):
    assert [number for number, _ in typed_numbers(text, ALLOWED)] == numbers


def test_the_constants_are_read():
    allowed = constants()
    assert "heads" in allowed[64.0] and "KiB" in allowed[99.0] and 57.1 not in allowed


def test_the_glossary_is_large_and_each_term_is_defined_once():
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    terms, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line == "```{glossary}"
        elif inside and line and not line.startswith(" "):
            terms.append(line)
    assert len(terms) >= 60
    assert len(set(terms)) == len(terms)
