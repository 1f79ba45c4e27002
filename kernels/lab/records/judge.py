"""Whether what a record timed is still what the tree would run.

A record names the files that were timed and what each of its sparse-MLA calls launched (`launches`). It is stale when

- a kernel that it launched has changed, with every function and constant that it reaches; where a record does not
  hold their hash, with every file of device code that the kernel's file imports;
- one of its calls would be launched otherwise today: with another kernel, grid or argument;
- it timed the indexer or the decode step, and any file of that package has changed.

Argument checks, plans of shapes that it did not time, kernels that it did not launch: none of these counts.
"""

from __future__ import annotations

import ast

from kernels.lab.records import device_code, launches, place, source

SPARSE, INDEXER, STEP = source.TIMED_PACKAGES
# Modules of the host's: no device code, even where a kernel's file takes a constant from one (`source.CONSTANTS`)
HOST = ("launch", "plan", "tiles", "api", "validate", "signatures", "reference", "flash_mla")
# Those that decide what is launched: after a change in one, the calls are planned and launched again, without a GPU.
# The others check arguments, compute the reference or only compile: they do not count
LAUNCHING = ("api.py", "launch.py", "plan.py", "tiles.py", "tuned.json", "validate.py")
# What every kernel reads, though none imports it: the bytes of the cache. The decode step stores by it, too
LAYOUT = f"{SPARSE}/layout.py"


def packages_of(record) -> set[str]:
    """The timed packages behind a record's good rows."""
    ops = _ops(record.table())
    if not ops & {"decode_step"} and _any_good(record.table("profile")):
        ops.add("decode_step")
    if not ops & {"decode_step", "sparse_mla_decode"}:
        ops |= _ops(record.table("counters"))
    found = {
        "sparse_mla_decode": {SPARSE},
        "indexer_logits": {INDEXER},
        "indexer_topk": {INDEXER},
        "decode_step": {STEP, INDEXER, SPARSE},
    }
    return set().union(*(found[op] for op in ops))


def _ops(df) -> set[str]:
    return set(df[df["status"] == "ok"]["op"])


def _any_good(df) -> bool:
    return bool((df["status"] == "ok").any())


def reason(record, now: dict[str, str]) -> str | None:
    """Why a record whose run.json has "files" is stale, in a few words, or None.

    now: `source.kernels_files()`.
    """
    then = record.info["files"]
    changed = {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)}
    timed = packages_of(record)
    whole = {name for name in changed if name.split("/")[0] in timed - {SPARSE}}
    if whole:
        return _files_changed(whole)
    changed = {name for name in changed if name.startswith(f"{SPARSE}/")}
    if SPARSE not in timed or not changed:
        return None
    noted = record.info.get("launches")
    if noted is None:
        return f"{_files_changed(changed)}; the run does not tell what it launched"
    kernels = launches.kernels_of(noted.values())
    touched = changed & _device_code(kernels)
    if touched and (LAYOUT in touched or _kernels_changed(kernels, record.info.get("device_code"))):
        return _files_changed(touched)
    if changed & {f"{SPARSE}/{name}" for name in LAUNCHING}:
        return _launched_otherwise(noted, record.info["device"])
    return None


def _kernels_changed(kernels: set[str], then: dict[str, str] | None) -> bool:
    """Whether one of the kernels consists of something else now; so it counts where the run does not tell."""
    if then is None:
        return True
    now = device_code.digests()
    return any(then.get(name) != now.get(name) for name in kernels)


def _files_changed(names: set[str]) -> str:
    first, *others = sorted(names)
    more = f" and {len(others)} more" if others else ""
    return f"the kernels have changed since this run ({first}{more})"


def _launched_otherwise(noted: dict[str, str], device: dict) -> str | None:
    launcher = launches.Launcher(device)
    other = [text for text, launch in noted.items() if _launch_today(launcher, text) != launch]
    if not other:
        return None
    return f"{len(other)} of the {len(noted)} calls that it timed are launched otherwise now, e.g. {other[0]}"


def _launch_today(launcher: launches.Launcher, text: str) -> str | None:
    try:
        return launcher.launches(launches.Call.read(text))
    except Exception:  # a call that the host code does not take any more is not launched as it was
        return None


def _device_code(kernels: set[str]) -> set[str]:
    """Files of the kernels, of what these import, the constants they take, and the layout.

    By today's imports: where they were others, a file that imports has changed.
    """
    modules = launches.kernel_modules()
    waiting, found = [modules[name] for name in kernels if name in modules], {LAYOUT}
    while waiting:
        path = f"{SPARSE}/{waiting.pop()}.py"
        if path in found:
            continue
        found.add(path)
        for module, names in imports(path).items():
            if module in HOST:
                found |= {f"{SPARSE}/{module}.py:{name}" for name in names}
            else:
                waiting.append(module)
    return found


def imports(path: str) -> dict[str, set[str]]:
    """Modules of sparse_mla that a file imports from, with the names it takes. path: below `kernels`."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((place.root() / "kernels" / path).read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(launches.PACKAGE):
            names = {alias.name for alias in node.names}
            found.setdefault(node.module.removeprefix(launches.PACKAGE), set()).update(names)
    return found
