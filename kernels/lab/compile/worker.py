"""The process that compiles: imports torch, Triton and the kernels once, then answers requests from a pipe.

It runs with TRITON_INTERPRET=0 whatever its parent does, because a function decorated for the interpreter
cannot be compiled. One request is a pickled dict with its length before it; so is the answer.
"""

import contextlib
import dataclasses
import gc
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
from kernels.lab.compile import binaries, reuse


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


def source_of(spec):
    """What Triton compiles for a `KernelSpec`; a Gluon kernel has a source of its own kind."""
    from triton.compiler import ASTSource

    kind = ASTSource
    if type(spec.fn).__name__ == "GluonJITFunction":
        from triton.experimental.gluon._runtime import GluonASTSource as kind
    return kind(spec.fn, spec.signature, spec.constexprs, spec.attrs)


def options_of(spec) -> dict:
    """Triton's options for a `KernelSpec`."""
    return {"num_warps": spec.num_warps, "num_stages": spec.num_stages}


def compile_spec(spec, arch: int):
    """PTX, cubin, shared bytes and ptxas log of a `KernelSpec`; `arch` is 120 for sm_120."""
    import triton
    from triton.backends.compiler import GPUTarget

    source = source_of(spec)
    options = options_of(spec)
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return kernel.asm["ptx"], kernel.asm["cubin"], kernel.metadata.shared, log.getvalue()


def _spec_key(spec, request: dict) -> str:
    """Names the machine code: the same for requests that a launcher would serve with the same kernel."""
    source = source_of(spec).hash()
    identity = [source, spec.num_warps, spec.num_stages, request["target"], request["tools"]]
    return hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()


def answer(spec, request: dict) -> dict:
    """Compile one specialisation: {"key"} if the cache has it, else with PTX, cubin and resources."""
    key = _spec_key(spec, request)
    if (Path(request["cache_root"]) / key[:2] / f"{key}.json").exists():
        return {"key": key}
    import triton

    started = time.perf_counter()
    if folder := request.get("reuse"):
        identity = reuse.digest(source_of(spec).hash(), request["tools"])
        ptx, cubin, shared, log = reuse.compile_once(
            folder, identity, lambda: compile_spec(spec, request["arch"])
        )
        resources = reuse.remembered(folder, reuse.digest("usage", cubin.hex()), lambda: _usage(cubin))
    else:
        ptx, cubin, shared, log = compile_spec(spec, request["arch"])
        resources = _usage(cubin)
    resources |= binaries.spills(log) or {}
    resources |= {
        "shared_bytes": shared,
        "max_threads": binaries.threads_per_block(ptx) or 32 * spec.num_warps,
    }
    resources |= {"num_warps": spec.num_warps, "num_stages": spec.num_stages, "name": spec.name}
    resources |= {"seconds": round(time.perf_counter() - started, 3), "triton": triton.__version__}
    return {"key": key, "resources": resources, "ptx": ptx, "cubin": cubin, "arch": request["arch"]}


def _usage(cubin: bytes) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return binaries.resource_usage(Path(file.name))


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
    # Compiling makes no cycles worth the search for them
    gc.disable()
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
    # Taking torch apart would take half a second, for which whoever closed the pipe waits
    sys.stderr.flush()
    os._exit(0)
