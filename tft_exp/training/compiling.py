"""torch.compile of what a model computes without a break, as `model.compile` has it.

The LSTM and the streamed selection stay as they are: the first is one kernel of a library, the second has a backward pass of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from tft_exp.config import Compile
from tft_exp.model.tft import TemporalFusionTransformer

log = logging.getLogger("tft_exp")


class Region:
    """A function, compiled for every new kind of arguments; from the first failure to compile on, as it was, with a warning."""

    def __init__(self, function: Callable[..., Any], mode: str | None) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = torch.compile(function, mode=mode)

    def __call__(self, *arguments: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        if self._compiled is not None:
            try:
                return self._compiled(*arguments)
            except TorchDynamoException as error:
                reason = str(error).strip().splitlines()[0]
                log.warning("note: model.compile: %s runs uncompiled: %s", self._function.__name__, reason)
                self._compiled = None
        return self._function(*arguments)


def compile_regions(model: TemporalFusionTransformer, kind: Compile, device: torch.device) -> None:
    """Compile the model's regions in place, when they are first called. CUDA graphs are a card's; elsewhere they are left out, with
    a warning."""
    if kind is Compile.none:
        return
    graphs = kind is Compile.cuda_graphs
    if graphs and device.type != "cuda":
        log.warning("note: model.compile=cuda_graphs is for CUDA; on %s the regions are compiled without", device.type)
        graphs = False
    model.replace_regions(lambda region: Region(region, "reduce-overhead" if graphs else None))
    if graphs:
        # A step's results lie where the last one's lay: it has to be said when those are no longer wanted.
        model.register_forward_pre_hook(lambda module, arguments: torch.compiler.cudagraph_mark_step_begin())


def compile_seconds() -> float:
    """What compiling took in this process so far, forward and backward."""
    from torch._dynamo.utils import calculate_time_spent

    return float(calculate_time_spent()["total_wall_time"])
