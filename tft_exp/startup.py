"""Starting: imports that are paid for every time, and processes that pay for them once."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage meanwhile: a million objects are made, none of it is, and looking takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def process_context(preload: str) -> BaseContext:
    """How to start processes that need the module `preload`: forked from a server that imports it once and runs no torch
    operation itself. A process has one server; the module that is asked for first is the one that it has."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tft_exp.preload", preload])
    return context
