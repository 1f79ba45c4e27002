"""What the site's pages need beyond Jupyter Book: a Sphinx extension, loaded in the place of sphinx-thebe.

sphinx-thebe connects pages to live kernels through a content network. No page here does, and its script fails
on a page that holds it twice; so `replace_thebe` puts this extension where Jupyter Book asks for that one.
"""

import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes

DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[µmn]s|tok/s|[KMGT]i?B(?:/s)?|TFLOP/s|W|MHz|GHz)(?![\w]))")

PREPRINT = re.compile(r"arXiv:(\d{4}\.\d{5})")
REPOSITORY = re.compile(r"(?<=Repository )([\w.-]+/[\w.-]+?)(?=\.? |\.?$)")
THREAD = re.compile(r"(?<!\S)([\w.-]+/[\w.-]+)\. (?:Pull request|Issue|Thread) (\d+)")


def replace_thebe() -> None:
    """Make Sphinx load this module's `setup` for the extension named sphinx_thebe."""
    import sphinx_thebe

    sphinx_thebe.setup = setup


def setup(app):
    """Sphinx calls this."""
    app.add_config_value("thebe_config", {}, "html")  # Jupyter Book sets it
    app.connect("builder-inited", complete_single_page)
    app.connect("builder-inited", read_numbered_pages_once)
    app.connect("doctree-read", describe_figures)
    app.connect("doctree-resolved", link_sources)
    app.connect("doctree-resolved", keep_units_beside_numbers)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def complete_single_page(app) -> None:
    """Let the single page, from which the PDF is printed, draw all that pages draw.

    Sphinx takes an extension's HTML only where no extension asks for this builder by name; sphinx-exercise does.
    """
    handlers = app.registry.translation_handlers
    if "singlehtml" in handlers:
        handlers["singlehtml"] = {**handlers.get("html", {}), **handlers["singlehtml"]}


def read_numbered_pages_once(app) -> None:
    """Keep the pages that {numref} points to: Sphinx reads the whole page for each, to look at one node of it."""
    domain = app.env.get_domain("std")
    resolve = domain._resolve_numref_xref

    class Keeping:
        get_doctree = staticmethod(cache(app.env.get_doctree))

        def __getattr__(self, name):
            return getattr(app.env, name)

    domain._resolve_numref_xref = lambda env, *rest: resolve(Keeping(), *rest)


def describe_figures(app, doctree) -> None:
    """Add a drawn figure's evidence line, which is an outline in the picture, to its alternative text."""
    for image in doctree.findall(nodes.image):
        line = evidence_line(Path(app.srcdir) / image["uri"]) or evidence_line(Path(image["uri"]))
        if line and image.get("alt") and line not in image["alt"]:
            image["alt"] = f"{image['alt'].rstrip('.')}. {line}."


def evidence_line(picture: Path) -> str | None:
    """The description that `kernels.lab.figures.style.svg` leaves in a file, or None."""
    if picture.suffix != ".svg" or not picture.is_file():
        return None
    found = ElementTree.parse(picture).find(f".//{DESCRIPTION}")
    return found.text if found is not None else None


def link_sources(app, doctree, docname) -> None:
    """In the bibliography preprints, repositories and threads, which are named by number, become links."""
    for citation in doctree.findall(nodes.citation):
        for element in list(citation.findall(nodes.TextElement)):
            join_texts(element)
        for text in list(citation.findall(nodes.Text)):
            if pieces := linked(str(text)):
                text.parent.replace(text, pieces)


def join_texts(element: nodes.TextElement) -> None:
    """Make neighbouring texts one: pybtex leaves an author, a full stop and a title apart."""
    joined: list[nodes.Node] = []
    for child in element.children:
        if joined and isinstance(child, nodes.Text) and isinstance(joined[-1], nodes.Text):
            joined[-1] = nodes.Text(joined[-1] + child)
        else:
            joined.append(child)
    element.children = []
    element.extend(joined)


def linked(text: str) -> list[nodes.Node]:
    """`text` with links, or an empty list where it names no source."""
    found = [(match.span(), f"https://arxiv.org/abs/{match[1]}") for match in PREPRINT.finditer(text)]
    found += [(match.span(), f"https://github.com/{match[1]}") for match in REPOSITORY.finditer(text)]
    # The host leads from an issue's address to a pull request of that number.
    found += [
        (match.span(), f"https://github.com/{match[1]}/issues/{match[2]}") for match in THREAD.finditer(text)
    ]
    pieces, end = [], 0
    for (start, stop), address in sorted(found):
        pieces += [
            nodes.Text(text[end:start]),
            nodes.reference("", text[start:stop], refuri=address, internal=False),
        ]
        end = stop
    return [*pieces, nodes.Text(text[end:])] if pieces else []


def keep_units_beside_numbers(app, doctree, docname) -> None:
    """No line break between a number and its unit."""
    for text in list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.raw):
            continue
        joined = NUMBER_AND_UNIT.sub("\u00a0", text)
        if joined != text:
            text.parent.replace(text, nodes.Text(joined))
