"""AdamW with moments in 8 or 4 bits, of the extra torchao. Imported where it is asked for."""

from __future__ import annotations

import logging
from typing import Any

import torch

# It warns at import of every kernel that is for another card than this machine's.
logging.getLogger("torchao").setLevel(logging.ERROR)
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

from torchao.optim import AdamW4bit, AdamW8bit  # noqa: E402

COMPILED = {8: AdamW8bit, 4: AdamW4bit}


class EagerAdamW8bit(AdamW8bit):  # type: ignore[misc]
    """Without the compiler, which on a CPU takes minutes for a model's shapes."""

    def step(self, closure: Any = None) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)


class EagerAdamW4bit(AdamW4bit):  # type: ignore[misc]
    """As EagerAdamW8bit."""

    def step(self, closure: Any = None) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)


EAGER = {8: EagerAdamW8bit, 4: EagerAdamW4bit}
