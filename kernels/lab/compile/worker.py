"""The process that compiles: imports torch, Triton and the kernels once, then answers requests from a pipe.

It runs with TRITON_INTERPRET=0 whatever its parent does, because a function decorated for the interpreter
cannot be compiled. One request is a pickled dict with its length before it; so is the answer.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tempfile
import time
import types
from pathlib import Path

from kernels import triton_mode
from kernels.lab.compile import binaries, sass
from kernels.lab.compile.result import Compiled


class InterpretedKernelError(RuntimeError):
    """The kernel was decorated for Triton's interpreter."""


def read_message(stream):
    """The next message from a pipe; None at its end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    body = stream.read(size)
    return pickle.loads(body) if len(body) == size else None


def write_message(stream, message) -> None:
    body = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(body)) + body)
    stream.flush()


def _tile(module, values: dict):
    """The operator's tile class with these fields, or an object with the same attributes."""
    candidates = list(vars(module).values())
    if module.__name__.startswith("kernels."):
        candidates += vars(importlib.import_module(module.__name__.rpartition(".")[0] + ".plan")).values()
    for candidate in candidates:
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            fields = dataclasses.fields(candidate)
            needed = {f.name for f in fields if f.default is dataclasses.MISSING}
            if needed <= set(values) <= {f.name for f in fields}:
                return candidate(**values)
    return types.SimpleNamespace(**values)


def _option(name: str, value):
    """An option as `signature` takes it: types travel by name, such as scratch_dtype="float32"."""
    if name.endswith("dtype") and isinstance(value, str):
        import torch

        return getattr(torch, value)
    return value


def spec_of(request: dict):
    """The `KernelSpec` that the operator's signatures module gives for a request."""
    from triton.runtime.interpreter import InterpretedFunction

    module = importlib.import_module(request["module"])
    options = {name: _option(name, value) for name, value in request["options"].items()}
    try:
        fn = (spec := module.signature(request["impl"], _tile(module, request["tile"]), **options)).fn
    except AttributeError:
        # `KernelSpec` reads what an interpreted function lacks: say what is wrong rather than what is
        # missing.
        fn = next((f for f in vars(module).values() if isinstance(f, InterpretedFunction)), None)
        if fn is None and not triton_mode.interpreted():
            raise
    if triton_mode.interpreted() or isinstance(fn, InterpretedFunction):
        raise InterpretedKernelError(
            f"{request['op']} {request['impl']}: decorated for Triton's interpreter, this kernel cannot be "
            f"compiled, because TRITON_INTERPRET=1 is set while {request['module']} is imported; "
            "leave that choice to kernels.triton_mode.ensure(), which keeps TRITON_INTERPRET=0 here"
        )
    return spec


def compile_spec(spec, arch: int):
    """PTX, cubin, shared bytes and ptxas log of a `KernelSpec`; `arch` is 120 for sm_120."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(spec.fn, spec.signature, spec.constexprs, spec.attrs)
    options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages} | getattr(
        spec, "compile_options", {}
    )
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return kernel.asm["ptx"], kernel.asm["cubin"], kernel.metadata.shared, log.getvalue()


def _spec_key(spec, request: dict) -> str:
    from triton.compiler import ASTSource

    options = getattr(spec, "compile_options", {})
    identity = [
        ASTSource(spec.fn, spec.signature, spec.constexprs, spec.attrs).hash(),
        spec.num_warps,
        spec.num_stages,
        sorted(options.items()),
        request["target"],
        request["tools"],
        [request[n] for n in ("op", "impl", "tile", "options")],
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, also while others write the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)


def answer(spec, request: dict) -> dict:
    """Compile one specialisation, or find it in the cache: `Compiled.as_json`, with PTX and SASS in files."""
    root = Path(request["cache_root"])
    asked = {name: request[name] for name in ("op", "impl", "tile", "target", "options")}
    key = _spec_key(spec, request)
    base = root / key[:2] / key
    if base.with_suffix(".json").exists():
        return json.loads(base.with_suffix(".json").read_text())
    started = time.perf_counter()
    ptx, cubin, shared, log = compile_spec(spec, request["arch"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = binaries.disassemble(Path(file.name))
        usage = binaries.resource_usage(Path(file.name))
    instructions, labels = sass.parse(text)
    found = sass.loops(instructions, labels)
    counts = sass.count(instructions)
    spilled = binaries.spills(log)
    if spilled is None:
        # Without a ptxas log, local loads and stores stand in: they include a stack array, should there be
        # one.
        spilled = {f"spill_{way}_bytes": counts.bytes_of(f"local_{way}") // 32 for way in ("store", "load")}
    import triton

    result = Compiled(
        **asked,
        name=spec.name,
        num_warps=spec.num_warps,
        num_stages=spec.num_stages,
        shared_bytes=shared,
        max_threads=binaries.threads_per_block(ptx) or 32 * spec.num_warps,
        counts=counts,
        loops=tuple(found),
        main_loop=sass.main_loop(found),
        key=key,
        seconds=round(time.perf_counter() - started, 3),
        triton=triton.__version__,
        **usage,
        **spilled,
    ).as_json()
    write_text(base.with_suffix(".ptx"), ptx)
    write_text(base.with_suffix(".sass"), text)
    write_text(base.with_suffix(".json"), json.dumps(result))
    return result


def reason_of(error: BaseException) -> str:
    """One line for a table: the error's type and text; for Triton's wrapper, the error that it wraps."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(str(cause).split()) or "no message"
    where = "" if cause is error else f" (in a {type(error).__name__})"
    return f"{type(cause).__name__}: {text}"[:1200] + where


def reply_to(request: dict) -> dict:
    """The answer to a request: a "result", the compiler's "error", or why the kernel is "unavailable"."""
    try:
        spec = spec_of(request)
    except InterpretedKernelError as error:
        return {"interpreted": str(error)}
    except Exception as error:
        return {"unavailable": reason_of(error)}
    try:
        return {"result": answer(spec, request)}
    except BaseException as error:
        return {"error": reason_of(error)}


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    scratch = tempfile.mkdtemp(prefix="kernels-compile-")
    os.environ["TRITON_CACHE_DIR"] = scratch
    try:
        while (request := read_message(requests)) is not None:
            reply = reply_to(request)
            write_message(replies, reply)
            for entry in os.scandir(scratch):
                shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
