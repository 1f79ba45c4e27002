"""Sphinx on a staged folder, configured by Jupyter Book's reading of _config.yml; warnings are errors.

python sphinx_build.py STAGED OUTPUT DOCTREES BUILDER
"""

import sys
from pathlib import Path


def main() -> int:
    import page_fixes

    # Called by path: without this, the runner's modules would shadow packages of the same names.
    sys.path.pop(0)
    page_fixes.replace_thebe()
    from jupyter_book.sphinx import build_sphinx

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
    return 0 if result == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
