"""A private kernelspec: the chapters' kernel is this interpreter, whatever else is called "python3" here."""

import json
import sys
from pathlib import Path

NAME = "python3"


def install(build: Path) -> Path:
    """Write build/jupyter/kernels/python3 and return build/jupyter (a JUPYTER_PATH entry)."""
    base = build / "jupyter"
    folder = base / "kernels" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (the book's environment)",
        "language": "python",
        "metadata": {"debugger": True},
    }
    path = folder / "kernel.json"
    text = json.dumps(spec, indent=1) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return base


def complaint(notebook: dict) -> str | None:
    """Why a chapter's kernelspec metadata is not accepted, or None."""
    spec = notebook.get("metadata", {}).get("kernelspec")
    if not spec:
        return f"the notebook names no kernelspec; chapters name {NAME!r}"
    if spec.get("name") != NAME:
        return f"the notebook asks for the kernelspec {spec.get('name')!r}; chapters name {NAME!r}"
    language = spec.get("language", "python")
    if language != "python":
        return f"the notebook's kernelspec has the language {language!r}; chapters are in python"
    return None
