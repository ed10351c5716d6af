"""As in a run (experiment._attempt): garbage is looked for among what a test made, not among the libraries' objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _libraries_set_aside() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
