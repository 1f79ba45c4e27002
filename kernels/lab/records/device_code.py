"""What a kernel consists of, wherever it stands: one hash over all functions and constants that it reaches.

A function may move to another file, and a comment or a docstring may change: what is compiled stays the same. The
hash is taken from the sources' tokens, the same in every version of Python. Nothing is imported; rungs in Gluon could
not be, under the interpreter.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernels.lab.records import place

PACKAGE = "kernels.sparse_mla."
SUFFIX = "_kernel"


def digests(folder: Path | None = None) -> dict[str, str]:
    """Kernel -> short SHA-256 of its own text and of all that it reaches in its package, without names of modules.

    folder: the sources of `kernels.sparse_mla`, the tree's by default.
    """
    folder = folder or place.root() / "kernels" / "sparse_mla"
    modules = {path.stem: _names(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}
    return {
        name: hashlib.sha256("\n".join(sorted(_reached(modules, module, name))).encode()).hexdigest()[:12]
        for module, names in modules.items()
        for name, found in names.items()
        if name.endswith(SUFFIX) and isinstance(found[0], ast.FunctionDef)
    }


def _names(source: str) -> dict[str, tuple]:
    """What a module's names stand for: (definition, its text), or (module, name) of an import from the package."""
    found: dict[str, tuple] = {}
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (node, _text(node, lines))
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found |= dict.fromkeys(names, (node, _text(node, lines)))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module.removeprefix(PACKAGE), alias.name)
    return found


def _reached(modules: dict[str, dict[str, tuple]], module: str, name: str) -> set[str]:
    """The texts of a definition and of all that it names, directly or through others."""
    waiting, seen, texts = [(module, name)], set(), set()
    while waiting:
        place_of = waiting.pop()
        what, text = modules.get(place_of[0], {}).get(place_of[1], (None, None))
        if isinstance(what, str):
            waiting.append((what, text))
        elif what is not None and place_of not in seen:
            seen.add(place_of)
            texts.add(text)
            waiting += [(place_of[0], one.id) for one in ast.walk(what) if isinstance(one, ast.Name)]
    return texts


def _text(node: ast.stmt, lines: list[str]) -> str:
    """A definition's tokens, decorators first, without comments, docstrings and layout; blocks stay blocks."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    told = {
        one.body[0].lineno - first + 1
        for one in ast.walk(node)
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(one, clean=False) is not None
    }
    blocks = {tokenize.INDENT: "<", tokenize.DEDENT: ">", tokenize.NEWLINE: ";"}
    words = []
    source = "".join(lines[first - 1 : node.end_lineno])
    for token in _whole_strings(tokenize.generate_tokens(io.StringIO(source).readline), source):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            continue
        if token.type == tokenize.STRING and token.start[0] in told:
            continue
        words.append(blocks.get(token.type, token.string))
    return "".join("".join(word.split()) for word in words)


def _whole_strings(tokens: Iterable[tokenize.TokenInfo], source: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens with every formatted string as one, as it stands: Python 3.12 reads it in parts, and braces once."""
    lines = source.splitlines(keepends=True)
    begin, depth = None, 0
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_START":
            begin, depth = begin or token.start, depth + 1
        if not depth:
            yield token
        elif kind == "FSTRING_END":
            depth -= 1
            if not depth:
                yield token._replace(
                    type=tokenize.STRING, string=_between(lines, begin, token.end), start=begin
                )
                begin = None


def _between(lines: list[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from one place to another; places are (line from 1, column)."""
    (first, left), (last, right) = begin, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
