"""What a program costs a card, counted operation by operation: products, memory traffic, and copies to and from the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from tft_exp.memory.ledger import Ledger, Place
from tft_exp.memory.tensors import tensors_in
from tft_exp.planning.plan import CardSpeed

aten = torch.ops.aten
# They give memory and touch none of it.
EMPTY = frozenset({aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default})
LSTM = {aten.mkldnn_rnn_layer.default: 1, aten.mkldnn_rnn_layer_backward.default: 2}


@dataclass
class Work:
    """Floating-point operations of products, and bytes read and written by all operations, by place; bytes between them."""

    flops: dict[Place, float]
    bytes: dict[Place, float]
    copied: float = 0.0

    @staticmethod
    def none() -> Work:
        return Work(dict.fromkeys(Place, 0.0), dict.fromkeys(Place, 0.0))

    def seconds(self, speed: CardSpeed) -> float:
        """What it takes if nothing overlaps: on the card the slower of arithmetic and traffic, and the same on the host."""
        card = max(self.flops[Place.card] / (speed.tflops * 1e12), self.bytes[Place.card] / (speed.memory_gb_per_second * 1e9))
        host = self.bytes[Place.host] / (speed.host_gb_per_second * 1e9)
        return card + host + self.copied / (speed.link_gb_per_second * 1e9)


class CostMeter:
    """Adds up the work of operations, by interval."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._copied = ledger.copied_bytes
        self.by_interval: defaultdict[str, Work] = defaultdict(Work.none)
        self.interval = ""

    def begin(self, interval: str) -> None:
        self.by_interval[self.interval].copied += self._ledger.copied_bytes - self._copied
        self._copied = self._ledger.copied_bytes
        self.interval = interval

    def count(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        if operation.is_view or operation in EMPTY:
            return
        written = list(tensors_in(result))
        if not written:
            return
        place = self._ledger.place_of(written[0]) or Place.card
        work = self.by_interval[self.interval]
        work.bytes[place] += sum(map(_nbytes, written)) + sum(map(_nbytes, tensors_in((*args, *kwargs.values()))))
        work.flops[place] += _flops(operation, args, kwargs, result)


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flops(operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> float:
    passes = LSTM.get(operation)
    if passes is not None:
        steps, weights = args[0], (args[1], args[2])
        return float(passes * 2 * steps.shape[0] * steps.shape[1] * sum(weight.numel() for weight in weights))
    formula = flop_registry.get(operation.overloadpacket)
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=result))
