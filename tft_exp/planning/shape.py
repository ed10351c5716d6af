"""What a plan needs to know of the data: how many variables of each role, rows, entities and windows. No values."""

from __future__ import annotations

from dataclasses import dataclass, field

from tft_exp.data.dataset import Dataset
from tft_exp.model.inputs import InputSizes


@dataclass(frozen=True)
class DataShape:
    """`windows` by split. `assumed` says in words what was not read from the data."""

    sizes: InputSizes
    rows: int
    entities: int
    windows: dict[str, int]
    assumed: tuple[str, ...] = field(default=(), compare=False)


def shape_of(dataset: Dataset) -> DataShape:
    """The shape of data that was loaded."""
    tensors = dataset.rows.tensors
    windows = {split: len(index) for split, index in dataset.rows.windows.items()}
    return DataShape(dataset.sizes, len(tensors.target), len(tensors.target_location), windows)
