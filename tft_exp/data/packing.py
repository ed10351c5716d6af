"""A data set's tensors as named arrays, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

import numpy as np
import torch

from tft_exp.data.rows import InputTensors, WindowedRows
from tft_exp.data.windows import SPLITS


def packed_rows(rows: WindowedRows) -> dict[str, np.ndarray]:
    """All of the rows but lookback and horizon. The arrays are the tensors' own memory."""
    arrays = {field.name: getattr(rows.tensors, field.name).numpy() for field in fields(InputTensors)}
    for split in SPLITS:
        arrays |= {f"windows_{split}": rows.windows[split].numpy(), f"stretches_{split}": rows.stretches[split]}
    return arrays


def unpacked_rows(arrays: Mapping[str, np.ndarray], lookback: int, horizon: int, release: Callable[[], None]) -> WindowedRows:
    """The rows that `packed_rows` took apart. The tensors are the arrays' own memory."""
    return WindowedRows(
        lookback=lookback,
        horizon=horizon,
        windows={split: torch.from_numpy(arrays[f"windows_{split}"]) for split in SPLITS},
        stretches={split: arrays[f"stretches_{split}"] for split in SPLITS},
        tensors=InputTensors(**{field.name: torch.from_numpy(arrays[field.name]) for field in fields(InputTensors)}),
        release=release,
    )
