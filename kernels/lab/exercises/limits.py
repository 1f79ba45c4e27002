"""A limit on the time an answer may take, so that an endless loop ends in a sentence."""

from __future__ import annotations

import contextlib
import signal
import threading

SECONDS = 20.0


class TimeUp(Exception):
    """An answer ran longer than the limit."""


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS):
    """Raise `TimeUp` inside the block after `seconds`; without a limit off the main thread or on Windows."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_signal, _frame):
        raise TimeUp(f"Your code was stopped after {seconds:g} seconds; these cases are small.")

    before = signal.signal(signal.SIGALRM, stop)
    rest = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *rest)
        signal.signal(signal.SIGALRM, before)
