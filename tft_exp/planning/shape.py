"""What a plan needs to know of the data: how many variables of each role, rows, entities and windows. No values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tft_exp.config import DataConfig, FeaturesConfig, ModelConfig
from tft_exp.data.dataset import Dataset
from tft_exp.data.inputs import ENTITY, Roles, role_names
from tft_exp.data.source import count_rows_and_categories, find_files
from tft_exp.errors import DataError
from tft_exp.model.inputs import InputSizes
from tft_exp.planning.plan import Assumed


@dataclass(frozen=True)
class DataShape:
    """`stretches` has by split how many windows follow each other row by row, and how often: (windows, times), rising. `assumed`
    says in words what was not read from the data."""

    sizes: InputSizes
    rows: int
    entities: int
    stretches: Mapping[str, tuple[tuple[int, int], ...]]
    assumed: tuple[str, ...] = field(default=(), compare=False)

    def windows(self, split: str) -> int:
        return sum(windows * times for windows, times in self.stretches[split])


def shape_of(dataset: Dataset) -> DataShape:
    """The shape of data that was loaded."""
    tensors = dataset.rows.tensors
    stretches = {split: tuple(sorted(Counter(found.tolist()).items())) for split, found in dataset.rows.stretches.items()}
    return DataShape(dataset.sizes, len(tensors.target), len(tensors.target_location), stretches)


def shape_from_roles(data: DataConfig, features: FeaturesConfig, model: ModelConfig, assumed: Assumed) -> DataShape:
    """The shape that the columns' roles give. Rows are counted in the file, and categories in its categorical columns, where it is
    there; no other column is read. Rows that loading would leave out, and windows over gaps, count: a plan is never below."""
    roles = role_names(data, features.kind)
    named = [*data.entities, *roles.static_categoricals, *roles.known_categoricals, *roles.observed_categoricals]
    columns = list(dict.fromkeys(name for name in named if name != ENTITY))
    told: list[str] = []
    try:
        files = find_files(data.path)
    except DataError as error:
        rows, categories = assumed.rows, dict.fromkeys(columns, assumed.categories)
        told.append(f"{error.what}: {rows:,} rows" + (f" and {assumed.categories:,} of each category" if columns else "") + " are assumed")
    else:
        rows, categories = count_rows_and_categories(files, columns)
    entities = 1
    for name in data.entities:
        entities *= categories[name]
    entities = min(entities, rows)
    # As inputs.py counts them: every category, and one code more for what training has not seen.
    cardinalities = {name: count + 1 for name, count in categories.items()} | {ENTITY: entities + 1}
    test = round(rows * data.test_fraction)
    validation = max(1, round(rows * data.validation_fraction))
    length = model.lookback + model.horizon
    windows = {"train": max(1, rows - test - validation - length + 1), "validation": validation, "test": test}
    # As if entities were alike and without a gap: where windows follow each other, validation shares rows.
    stretches = {split: ((-(-count // entities), entities),) for split, count in windows.items()}
    return DataShape(_sizes(roles, cardinalities), rows, entities, stretches, tuple(told))


def _sizes(roles: Roles, cardinalities: Mapping[str, int]) -> InputSizes:
    def of(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(cardinalities[name] for name in names)

    return InputSizes(
        len(roles.static_reals),
        of(roles.static_categoricals),
        len(roles.known_reals),
        of(roles.known_categoricals),
        len(roles.observed_reals),
        of(roles.observed_categoricals),
    )
