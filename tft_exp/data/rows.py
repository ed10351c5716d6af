"""Rows as tensors, and batches of windows gathered from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tft_exp.data.runs import Runs
from tft_exp.model.inputs import Inputs


@dataclass(frozen=True)
class InputTensors:
    """Rows as contiguous tensors on one device; an absent role has no columns. Reals are scaled float32."""

    heads: Tensor  # int32 [entities], the first row of each, rising
    static_reals: Tensor  # [entities, static reals]
    static_categoricals: Tensor  # [entities, static categoricals], int64
    known_reals: Tensor  # [rows, known reals]
    known_categoricals: Tensor  # [rows, known categoricals], int64
    observed_reals: Tensor  # [rows, observed reals]
    observed_categoricals: Tensor  # [rows, observed categoricals], int64
    target: Tensor  # [rows], scaled
    target_location: Tensor  # [entities]; the target in its own unit is target * scale + location
    target_scale: Tensor  # [entities]

    def moved(self, move: Callable[[Tensor], Tensor]) -> InputTensors:
        return replace(self, **{field.name: move(getattr(self, field.name)) for field in fields(self)})


class Batch(NamedTuple):
    """Windows as the model is fed them. The target in its own unit is target * scale + location."""

    inputs: Inputs
    target: Tensor  # [batch, horizon], scaled
    location: Tensor  # [batch]
    scale: Tensor  # [batch]


@dataclass(frozen=True)
class WindowedRows:
    """Rows as tensors and the windows over them, all on one device."""

    lookback: int
    horizon: int
    windows: dict[str, Tensor]  # by split, int32 [windows], the first row of each, rising
    stretches: dict[str, np.ndarray]  # by split: how many windows follow each other row by row, int64 [stretches]
    tensors: InputTensors
    release: Callable[[], None] = lambda: None  # lets go what memory holds of tensors that lie in files; called after each batch

    @property
    def bytes(self) -> int:
        """Bytes of the rows and windows, all that `moved` brings to a device."""
        tensors = [*vars(self.tensors).values(), *self.windows.values()]
        return sum(tensor.nbytes for tensor in tensors)

    def moved(self, move: Callable[[Tensor], Tensor]) -> WindowedRows:
        """The same data, every tensor brought elsewhere by `move`."""
        windows = {split: move(index) for split, index in self.windows.items()}
        return replace(self, windows=windows, tensors=self.tensors.moved(move))

    def gather(self, runs: Runs) -> Batch:
        """The batch of some runs of windows, on the data's device, by indexing alone."""
        first, t = runs.starts, self.tensors
        entity = torch.searchsorted(t.heads, first.contiguous(), right=True) - 1
        extra = (runs.windows - 1) * runs.stride
        steps = torch.arange(self.lookback + self.horizon + extra, device=first.device)
        rows = first[:, None] + steps
        past = rows[:, : self.lookback + extra]
        future = rows[:, self.lookback :]
        if runs.windows > 1:
            future = future.unfold(1, self.horizon, runs.stride).flatten(0, 1)
        of_each = entity if runs.windows == 1 else entity.repeat_interleave(runs.windows)
        inputs = Inputs(
            take(t.static_reals, entity),
            take(t.static_categoricals, entity),
            take(t.known_reals, rows),
            take(t.known_categoricals, rows),
            take(t.observed_reals, past),
            take(t.observed_categoricals, past),
            runs.stride,
        )
        batch = Batch(inputs, t.target.take(future), t.target_location.take(of_each), t.target_scale.take(of_each))
        self.release()
        return batch


def take(values: Tensor, at: Tensor) -> Tensor:
    """values[at], which takes twice as long, of values [rows, columns]; nothing where there is no column."""
    return torch.embedding(values, at) if values.shape[1] else values.new_empty(*at.shape, 0)
