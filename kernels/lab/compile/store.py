"""The cache of machine code: one JSON file with counts, one with PTX and one with SASS for each kernel."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from kernels.lab.compile import sass
from kernels.lab.compile.disassemble import BATCH, disassemble_all
from kernels.lab.compile.pool import worker_count
from kernels.lab.compile.request import Request, cache_root
from kernels.lab.compile.result import Compiled, from_json


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, also while others write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def _base(key: str) -> Path:
    return cache_root() / key[:2] / key


def load(key: str, request: Request) -> Compiled:
    """The kernel called `key`, as the answer to a request whose options may be other ones of no effect.

    Raises:
        OSError: the cache has no such kernel.
    """
    compiled = from_json(json.loads(_base(key).with_suffix(".json").read_text()))
    asked = {name: getattr(request, name) for name in ("op", "impl", "tile", "target")}
    return replace(compiled, **asked, options=dict(request.options or {}))


@lru_cache(maxsize=256)
def _read(text: str):
    instructions, labels = sass.parse(text)
    return sass.count(instructions), sass.loops(instructions, labels)


def _keep(answer: dict, text: str) -> None:
    base, resources = _base(answer["key"]), answer["resources"]
    counts, found = _read(text)
    if "spill_store_bytes" not in resources:
        # Without a ptxas log, local loads and stores stand in: they include a stack array, should there be
        # one.
        resources |= {
            f"spill_{way}_bytes": counts.bytes_of(f"local_{way}") // 32 for way in ("store", "load")
        }
    compiled = Compiled(
        "",
        "",
        {},
        "",
        {},
        counts=counts,
        loops=tuple(found),
        main_loop=sass.main_loop(found),
        key=answer["key"],
        **resources,
    )
    write_text(base.with_suffix(".ptx"), answer["ptx"])
    write_text(base.with_suffix(".sass"), text)
    write_text(base.with_suffix(".json"), json.dumps(compiled.as_json()))


def read_machine_code(answers: list[dict]) -> None:
    """Disassemble, count and keep the kernels that workers have just compiled."""
    fresh = {answer["key"]: answer for answer in answers if "cubin" in answer}
    batches, texts = [], {}
    for arch in sorted({answer["arch"] for answer in fresh.values()}):
        # Each code once: a tile at several pipeline depths is often the same code
        codes = list(dict.fromkeys(answer["cubin"] for answer in fresh.values() if answer["arch"] == arch))
        batches += [(arch, codes[n : n + BATCH]) for n in range(0, len(codes), BATCH)]
    with ThreadPoolExecutor(worker_count()) as threads:
        found = threads.map(lambda batch: disassemble_all(batch[1], batch[0]), batches)
        for (arch, codes), of_batch in zip(batches, found, strict=True):
            texts |= {(arch, code): text for code, text in zip(codes, of_batch, strict=True)}
    for answer in fresh.values():
        _keep(answer, texts[answer["arch"], answer["cubin"]])
