"""Sphinx on a staged folder, configured by Jupyter Book's reading of _config.yml; warnings are errors.

python sphinx_build.py STAGED OUTPUT DOCTREES BUILDER
"""

import sys
from pathlib import Path


def main() -> int:
    # Called by path: without this, the runner's modules would shadow packages of the same names.
    sys.path.pop(0)
    from jupyter_book.sphinx import REDIRECT_TEXT, build_sphinx

    staged, output, doctrees = (Path(argument).resolve() for argument in sys.argv[1:4])
    builder = sys.argv[4]
    result = build_sphinx(
        staged,
        output,
        confdir=None,
        noconfig=True,
        path_config=staged / "_config.yml",
        confoverrides={"external_toc_path": (staged / "_toc.yml").as_posix(), "latex_individualpages": False},
        doctreedir=doctrees,
        builder=builder,
        force_all=True,
        warningiserror=True,
        keep_going=True,
    )
    if result != 0:
        return 1
    if builder == "html" and not (output / "index.html").is_file():
        first = _first_page(staged)
        (output / "index.html").write_text(REDIRECT_TEXT.format(first_page=first), encoding="utf-8")
    return 0


def _first_page(staged: Path) -> str:
    import yaml

    root = yaml.safe_load((staged / "_toc.yml").read_text(encoding="utf-8"))["root"]
    return f"{Path(root).with_suffix('').as_posix()}.html"


if __name__ == "__main__":
    sys.exit(main())
