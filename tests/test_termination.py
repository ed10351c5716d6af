"""Signals that are held back while a run writes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tft_exp.errors import Killed
from tft_exp.termination import listen, undisturbed


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    listen(*before)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Killed), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_waits_for_the_outermost_write_to_end(number: signal.Signals, error: type[BaseException]) -> None:
    written = []

    def write() -> None:
        with undisturbed():
            with undisturbed():
                os.kill(os.getpid(), number)
                written.append("inner")
            written.append("outer")

    with pytest.raises(error):
        write()
    assert written == ["inner", "outer"]
    with pytest.raises(error):
        os.kill(os.getpid(), number)
