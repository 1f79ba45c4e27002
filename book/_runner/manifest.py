"""The runner's own record of what ran: _build/manifest.json. Papermill's metadata is not trusted."""

import json
import os
from pathlib import Path

SCHEMA = 1


def load(path: Path) -> dict:
    """The manifest, or an empty one where there is none or it is unreadable or of another schema."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        manifest = {}
    return {"schema": SCHEMA, "chapters": {}, "last_run": {}, "site": {}, **manifest}


def save(path: Path, manifest: dict) -> None:
    """Write under a temporary name and rename: a reader never sees half a manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def is_fresh(entry: dict | None, key: str, executed: Path, sha256) -> bool:
    """Whether a chapter's last execution still stands: same key, it succeeded, its copy is untouched."""
    return bool(
        entry
        and entry.get("status") == "ok"
        and entry.get("key") == key
        and executed.is_file()
        and entry.get("executed_sha256") == sha256(executed)
    )
