"""Columns of a panel as the model's tensors: roles, vocabularies and scales, fitted on training rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tft_exp.config import DataConfig, FeatureSet, Scaling
from tft_exp.data.features import derive, known_names, observed_names, static_names
from tft_exp.data.panel import Panel
from tft_exp.data.rows import InputTensors
from tft_exp.data.scaling import Scale, fit_scale
from tft_exp.errors import ConfigError, DataError
from tft_exp.model.inputs import InputSizes

ENTITY = "entity"


@dataclass(frozen=True)
class Roles:
    """Names of the variables in the order of their columns."""

    static_reals: list[str]
    static_categoricals: list[str]
    known_reals: list[str]
    known_categoricals: list[str]
    observed_reals: list[str]
    observed_categoricals: list[str]

    @property
    def static(self) -> list[str]:
        return self.static_reals + self.static_categoricals

    @property
    def known(self) -> list[str]:
        return self.known_reals + self.known_categoricals

    @property
    def observed(self) -> list[str]:
        return self.observed_reals + self.observed_categoricals


@dataclass(frozen=True)
class BuiltInputs:
    """The tensors, what they are called, and what a later loader needs to make the same of new rows."""

    tensors: InputTensors
    roles: Roles
    sizes: InputSizes
    preprocessing: dict[str, Any]
    constants: list[str]
    warnings: list[str]
    constant_target: np.ndarray  # [entities], true where the training rows hold one value of the target


def role_names(config: DataConfig, kind: FeatureSet) -> Roles:
    """What the model is given, by role: columns, and what is derived from them. The target's own past is an observed input, once."""
    return Roles(
        [*config.static_real, *static_names(kind)],
        [*config.static_categorical, *([ENTITY] if config.entities else [])],
        [*config.known_real, *known_names(kind)],
        config.known_categorical,
        list(dict.fromkeys([config.target, *observed_names(kind), *config.observed_real])),
        config.observed_categorical,
    )


def build_inputs(panel: Panel, config: DataConfig, kind: FeatureSet, *, training: np.ndarray) -> BuiltInputs:
    """Derive, scale and encode; `training` marks the rows that statistics may be taken from, [rows]."""
    return _Builder(panel, config, kind, training).build()


class _Builder:
    def __init__(self, panel: Panel, config: DataConfig, kind: FeatureSet, training: np.ndarray) -> None:
        self.panel, self.config, self.kind, self.training = panel, config, kind, training
        self.features = derive(panel, config.bars, kind)
        self.entities = len(panel.entity_names)
        # The first row of each entity; rows are sorted by entity.
        self.heads = np.searchsorted(panel.entity, np.arange(self.entities))
        self.scales: dict[str, dict[str, list[float]]] = {}
        self.vocabularies: dict[str, list[str]] = {}
        self.constants: list[str] = []
        self.constant_target = np.zeros(self.entities, dtype=bool)
        self.warnings: list[str] = []

    def build(self) -> BuiltInputs:
        config, derived = self.config, self.features
        roles = role_names(config, self.kind)
        _require_distinct(roles)
        observed = self._columns(roles.observed_reals)
        known = self._columns(config.known_real)
        static = self._static_values()
        observed_reals = self._scaled(observed)
        location, scale = (np.array(self.scales[config.target][key], dtype=np.float32) for key in ("location", "scale"))
        tensors = InputTensors(
            static_reals=torch.from_numpy(self._static_scaled(static)),
            static_categoricals=torch.from_numpy(self._static_codes()),
            # The calendar is bounded by itself; scaled by a few days it would run out of bounds in later months.
            known_reals=torch.from_numpy(np.hstack([self._scaled(known), _as_columns(derived.known, self.panel.rows)])),
            known_categoricals=torch.from_numpy(self._codes(config.known_categorical)),
            observed_reals=torch.from_numpy(observed_reals),
            observed_categoricals=torch.from_numpy(self._codes(config.observed_categorical)),
            target=torch.from_numpy(np.ascontiguousarray(observed_reals[:, list(observed).index(config.target)])),
            target_location=torch.from_numpy(location),
            target_scale=torch.from_numpy(scale),
        )
        sizes = InputSizes(
            len(roles.static_reals),
            self._cardinalities(roles.static_categoricals),
            len(roles.known_reals),
            self._cardinalities(roles.known_categoricals),
            len(roles.observed_reals),
            self._cardinalities(roles.observed_categoricals),
        )
        preprocessing = {
            "target": config.target,
            "roles": vars(roles),
            "scales": self.scales,
            "vocabularies": self.vocabularies,
            "static_values": {name: values.tolist() for name, values in static.items()},  # by entity; new rows alone do not give them
        }
        return BuiltInputs(tensors, roles, sizes, preprocessing, self.constants, self.warnings, self.constant_target)

    def _columns(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        derived, read = self.features.observed, self.panel.reals
        return {name: derived[name] if name in derived else read[name] for name in names}

    def _scaled(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Columns scaled by their training rows, float32 [rows, columns]."""
        scaled = np.empty((self.panel.rows, len(columns)), dtype=np.float32)
        by_entity = self.config.scaling is Scaling.entity
        for index, (name, values) in enumerate(columns.items()):
            scale = fit_scale(values, self.panel.entity, self.training, self.entities, by_entity=by_entity)
            scaled[:, index] = scale.apply(values, self.panel.entity)
            self._require_finite(name, values, scale, scaled[:, index])
            self._keep_scale(name, scale.location, scale.scale)
            if name == self.config.target:
                self.constant_target = scale.constant
            if scale.constant.any():
                which = (
                    ""
                    if scale.constant.all()
                    else f" of {', '.join(self.panel.entity_names[e] for e in np.flatnonzero(scale.constant)[:3])}"
                )
                self.constants.append(name + which)
        return scaled

    def _require_finite(self, name: str, values: np.ndarray, scale: Scale, scaled: np.ndarray) -> None:
        """Refuse what became infinite; `values` are those of rows, or of entities."""
        if not (np.isfinite(scale.scale).all() and np.isfinite(scaled).all()):
            farthest = int(np.argmax(np.abs(values)))
            row = farthest if len(values) == self.panel.rows else int(self.heads[farthest])
            raise DataError(
                f"{name} holds values so large that float32 cannot hold them, scaled by the training rows",
                where=f"{self.panel.place(row)}: {values[farthest]:g}",
                mend=f"mend the file, or give {name} in a larger unit or as a logarithm",
            )

    def _keep_scale(self, name: str, location: np.ndarray, scale: np.ndarray) -> None:
        self.scales[name] = {"location": location.tolist(), "scale": scale.tolist()}

    def _static_values(self) -> dict[str, np.ndarray]:
        """Static reals, one value an entity: declared columns, and means over the training rows of derived ones."""
        declared = {name: self.panel.reals[name][self.heads] for name in self.config.static_real}
        entity = self.panel.entity[self.training]
        count = np.bincount(entity, minlength=self.entities)
        means = {
            f"mean_{name}": np.bincount(entity, weights=values[self.training], minlength=self.entities) / count
            for name, values in self.features.static_sources.items()
        }
        return declared | means

    def _static_scaled(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Static reals scaled over the entities, float32 [entities, columns]."""
        scaled = np.empty((self.entities, len(columns)), dtype=np.float32)
        everyone = np.arange(self.entities)
        for index, (name, values) in enumerate(columns.items()):
            scale = fit_scale(values, everyone, np.ones(self.entities, dtype=bool), self.entities, by_entity=False)
            scaled[:, index] = scale.apply(values, everyone)
            self._require_finite(name, values, scale, scaled[:, index])
            self._keep_scale(name, scale.location[:1], scale.scale[:1])
            if self.entities > 1 and scale.constant.all():  # of a single entity every one is
                self.constants.append(name)
        return scaled

    def _static_codes(self) -> np.ndarray:
        codes = self._codes(self.config.static_categorical)[self.heads]
        if not self.config.entities:
            return codes
        self.vocabularies[ENTITY] = self.panel.entity_names
        return np.column_stack([codes, np.arange(1, self.entities + 1)])

    def _codes(self, names: Sequence[str]) -> np.ndarray:
        """Categories as int64 codes [rows, columns]: 1 and up for those of the training rows, 0 for all others."""
        coded = np.empty((self.panel.rows, len(names)), dtype=np.int64)
        for index, name in enumerate(names):
            values, vocabulary = self.panel.codes[name], self.panel.vocabularies[name]
            seen = np.unique(values[self.training])
            renumbered = np.zeros(len(vocabulary), dtype=np.int64)
            renumbered[seen] = np.arange(1, len(seen) + 1)
            coded[:, index] = renumbered[values]
            self.vocabularies[name] = [vocabulary[code] for code in seen]
            unknown = coded[:, index] == 0
            if unknown.any():
                row = int(np.argmax(unknown))
                self.warnings.append(
                    f"{name}: {int(unknown.sum())} rows hold a category that no training row has, and count as unknown; "
                    f"first {vocabulary[values[row]]!r} at {self.panel.place(row)}"
                )
        return coded

    def _cardinalities(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(len(self.vocabularies[name]) + 1 for name in names)


def _require_distinct(roles: Roles) -> None:
    """Inputs are told apart by name, in `preprocessing` as in reports."""
    for names in (
        roles.static_reals + roles.known_reals + roles.observed_reals,
        roles.static_categoricals + roles.known_categoricals + roles.observed_categoricals,
    ):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise ConfigError(
                f"two inputs would have the name {twice[0]}",
                where="the roles in data, beside what features.kind derives and the entity",
                mend=f"name {twice[0]} in one role, once; rename the column if it is another one",
            )


def _as_columns(columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    return np.column_stack(list(columns.values())).astype(np.float32) if columns else np.empty((rows, 0), dtype=np.float32)
