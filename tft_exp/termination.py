"""Signals that end a run, held back while it writes: a write that is cut in half can leave the store unusable for what must follow."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tft_exp.errors import Killed

_depth = 0
_pending: int | None = None


def listen(*numbers: int) -> None:
    """From now on these signals raise Killed, SIGINT KeyboardInterrupt, in the main thread, and not within `undisturbed`."""
    for number in numbers:
        signal.signal(number, _on_signal)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signals back; one that came is raised at the end."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0 and _pending is not None:
            number, _pending = _pending, None
            _raise(number)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _pending
    if _depth:
        _pending = number
    else:
        _raise(number)


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Killed(f"signal {number}")
