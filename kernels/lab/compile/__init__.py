"""Compiles any rung of either operator for a named GPU and reads what the compiler made of it.

    compile_kernel("sparse_mla", "mma", Tile(16, 32, 4, 2), target="sm_120").registers

No GPU is needed. Work happens in processes of its own (see `worker`), so this also works in a notebook that
interprets its kernels. Results are kept under `_build/compile-cache`, by the hash of the kernel's source.
"""

import json
from dataclasses import replace

from kernels.lab.compile import pool, store
from kernels.lab.compile.classes import CLASSES
from kernels.lab.compile.legality import legal
from kernels.lab.compile.request import Request, cache_root, make_request, source_hash, tools_hash
from kernels.lab.compile.result import Compiled, from_json
from kernels.lab.compile.sass import Counts, Loop
from kernels.lab.compile.worker import InterpretedKernelError
from kernels.lab.devices import target_of

__all__ = [
    "CLASSES",
    "Compiled",
    "Counts",
    "InterpretedKernelError",
    "Loop",
    "Request",
    "compile_kernel",
    "compile_many",
    "legal",
    "make_request",
]


def compile_kernel(op: str, impl: str, tile, target: str = "sm_120", **options) -> Compiled:
    """Compile one kernel with the specialisation that its launcher would choose.

    Args:
        op: "sparse_mla" or "indexer" (or a dotted module name that has `signature`).
        impl: rung of the ladder, such as "simt" or "mma".
        tile: mapping or dataclass with block sizes, num_warps and num_stages.
        target: "sm_120", "sm_90" ...
        options: keyword arguments of the operator's `signature`, such as heads=64.

    Returns:
        `Compiled`; a failure of the compiler is its `error`, not an exception.

    Raises:
        ValueError: unknown target, or a block size that is no power of two.
        InterpretedKernelError: the kernel can only be interpreted.
    """
    return compile_many([make_request(op, impl, tile, target, **options)])[0]


def compile_many(requests) -> list[Compiled]:
    """Compile requests in parallel, from the cache where it has them; results in the requests' order.

    Args:
        requests: `Request` objects, or mappings with the arguments of `compile_kernel` by name.
    """
    requests = [r if isinstance(r, Request) else make_request(**r) for r in requests]
    hashes = {module: source_hash(module) for module in {r.module for r in requests}}
    keys = [request.key(hashes[request.module]) for request in requests]
    by_key = dict(zip(keys, requests, strict=True))
    known = {key: found for key, request in by_key.items() if (found := _look_up(key, request)) is not None}
    missing = [key for key in by_key if key not in known]
    if missing:
        replies = pool.ask_all([_message(by_key[key]) for key in missing], hashes)
        for reply in replies:
            if "interpreted" in reply:
                raise InterpretedKernelError(reply["interpreted"])
        store.read_machine_code([reply["result"] for reply in replies if "result" in reply])
        for key, reply in zip(missing, replies, strict=True):
            known[key] = _receive(by_key[key], key, reply)
    return [known[key] for key in keys]


def _message(request: Request) -> dict:
    arch = target_of(request.target).arch
    return request.as_json() | {"arch": arch, "cache_root": str(cache_root()), "tools": tools_hash()}


def _index(key: str):
    return cache_root() / "index" / f"{key}.json"


def _look_up(key: str, request: Request) -> Compiled | None:
    """The cached result of a request: the index names the machine code, whose source has not changed."""
    try:
        entry = json.loads(_index(key).read_text())
        if "result" in entry:
            return replace(from_json(entry["result"]), from_cache=True)
        return replace(store.load(entry["key"], request), from_cache=True)
    except (OSError, ValueError, KeyError):
        return None


def _receive(request: Request, key: str, reply: dict) -> Compiled:
    if "result" in reply:
        compiled = store.load(reply["result"]["key"], request)
        entry = {"key": compiled.key}
    else:
        asked = (request.op, request.impl, request.tile, request.target, dict(request.options or {}))
        warps = {name: request.tile.get(name) for name in ("num_warps", "num_stages")}
        compiled = Compiled(*asked, error=next(iter(reply.values())), **warps)
        entry = {"result": compiled.as_json()}
    # A crash or a missing kernel may be gone next time; what the compiler said of this source stays true.
    if "result" in reply or "error" in reply:
        store.write_text(_index(key), json.dumps(entry))
    return compiled
