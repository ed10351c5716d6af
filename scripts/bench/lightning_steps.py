"""What the three peers share: their training loop is Lightning's, and a callback tells of every step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from worker import AfterStep

# As quiet as each library lets itself be, so that logs and checkpoints cost nobody anything.
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def steps_callback(base: type, begin: Callable[[Any], None], after: AfterStep) -> Any:
    """A callback of the given Lightning's base class: `begin` with the module before the first batch is drawn, `after` each step."""

    class Steps(base):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.count = itertools.count(1)
            begin(module)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if after(next(self.count)):
                trainer.should_stop = True

    return Steps()
