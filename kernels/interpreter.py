"""Spares Triton's interpreter work whose result it throws away: more than half of its time.

What a kernel computes, and what is refused, stays the same. Written for Triton 3.7: where a version's interpreter
looks different, it is left as it is.
"""

import dataclasses
from functools import cache, wraps

_NEEDED = ("_patch_lang", "_get_np_dtype", "InterpretedFunction", "InterpreterError", "interpreter_semantic")


def spare() -> None:
    """Replace what is wasteful in `triton.runtime.interpreter`; a second call does nothing."""
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, name) for name in _NEEDED):
        return
    if getattr(interpreter.InterpretedFunction.__call__, "spared", False):
        return
    _replace_operations_once(interpreter)
    _leave_out_dropped_checks(interpreter.interpreter_semantic)
    _look_types_up(interpreter)


def _replace_operations_once(interpreter) -> None:
    """When a kernel starts, every operation of `triton.language` is replaced by the interpreter's own.

    It happens again at each call of a function inside the kernel, where they are replaced already. Functions of
    Triton's own library, such as `tl.sum`, look operations up in `tl.core`: those are replaced at the first call and
    stay so.
    """
    import triton.language as tl

    function = interpreter.InterpretedFunction
    original = function.__call__

    @cache
    def sees_core(fn) -> bool:
        return any(value is tl.core for value in fn.__globals__.values())

    def call(self, *args, **kwargs):
        is_builtin = tl.core.is_builtin
        if is_builtin(tl.load) or (sees_core(self.fn) and is_builtin(tl.core.load)):
            return original(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    call.spared = True
    function.__call__ = call


def _leave_out_dropped_checks(semantic) -> None:
    """A check of every integer operation for overflow ends in `device_assert`, which drops it outside debug mode."""
    options = semantic.builder.options
    try:
        dropped = semantic.device_assert(None, "", None) is None
    except Exception:
        dropped = False
    if dropped and getattr(options, "sanitize_overflow", False):
        semantic.builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _look_types_up(interpreter) -> None:
    """The table of NumPy's types is built anew for each operation."""
    original, known = interpreter._get_np_dtype, {}

    @wraps(original)
    def numpy_type(dtype):
        name = dtype.scalar.name
        if name not in known:
            known[name] = original(dtype)
        return known[name]

    interpreter._get_np_dtype = numpy_type
