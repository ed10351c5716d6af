"""Columns of a panel as the model's tensors: roles, vocabularies and scales, fitted on training rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tft_exp.config import DataConfig, FeatureSet, Scaling
from tft_exp.data.features import Features, derive, known_names, observed_names, static_names
from tft_exp.data.panel import Panel
from tft_exp.data.rows import InputTensors
from tft_exp.data.scaling import Moments, Part, Scale, whole
from tft_exp.data.training_rows import TrainingRows
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


def build_inputs(panel: Panel, config: DataConfig, kind: FeatureSet, training: TrainingRows) -> BuiltInputs:
    """Derive, scale and encode; statistics are of `training` alone. Two passes over the rows: the first takes statistics, the
    second fills the tensors, which lie in the panel's arrays. Raises DataError, ConfigError."""
    return _Builder(panel, config, kind, training).build()


class _Builder:
    def __init__(self, panel: Panel, config: DataConfig, kind: FeatureSet, training: TrainingRows) -> None:
        self.panel, self.config, self.kind, self.training = panel, config, kind, training
        self.roles = role_names(config, kind)
        _require_distinct(self.roles)
        self.entities = len(panel.entity_names)
        self.heads = panel.heads[:-1]
        self.known_reals = [*config.known_real, *known_names(kind)]
        # What is scaled by its rows. The calendar is bounded by itself; scaled by a few days it would run out of bounds later.
        self.scaled = list(dict.fromkeys([*self.roles.observed_reals, *config.known_real]))
        self.categoricals = [*config.static_categorical, *config.known_categorical, *config.observed_categorical]
        self.scales: dict[str, dict[str, list[float]]] = {}
        self.vocabularies: dict[str, list[str]] = {}
        self.constants: list[str] = []
        self.warnings: list[str] = []
        self._derived: tuple[int, Features] | None = None

    def build(self) -> BuiltInputs:
        config, roles, rows = self.config, self.roles, self.panel.rows
        moments, static, renumbered = self._statistics()
        fitted = {name: self._fitted(name, moments[name].finish()) for name in self.scaled}
        arrays = self.panel.arrays
        known = arrays.empty((rows, len(self.known_reals)), np.float32, "known_reals")
        observed = arrays.empty((rows, len(roles.observed_reals)), np.float32, "observed_reals")
        target = arrays.empty(rows, np.float32, "target")
        known_codes = arrays.empty((rows, len(config.known_categorical)), np.int64, "known_categoricals")
        observed_codes = arrays.empty((rows, len(config.observed_categorical)), np.int64, "observed_categoricals")
        for block in self.panel.blocks():
            derived, part = self._features(block), self.training.part(block)
            for index, name in enumerate(self.known_reals):
                known[block, index] = derived.known[name] if name in derived.known else self._apply(name, fitted[name], block, part)
            for index, name in enumerate(roles.observed_reals):
                observed[block, index] = self._apply(name, fitted[name], block, part)
            target[block] = observed[block, roles.observed_reals.index(config.target)]
            for index, name in enumerate(config.known_categorical):
                known_codes[block, index] = renumbered[name][self.panel.codes[name][block]]
            for index, name in enumerate(config.observed_categorical):
                observed_codes[block, index] = renumbered[name][self.panel.codes[name][block]]
        static_reals, static_codes = self._static_scaled(static), self._static_codes(renumbered)
        of_target = fitted[config.target]
        tensors = InputTensors(
            heads=torch.from_numpy(self.heads.astype(np.int32)),
            static_reals=torch.from_numpy(static_reals),
            static_categoricals=torch.from_numpy(static_codes),
            known_reals=torch.from_numpy(known),
            known_categoricals=torch.from_numpy(known_codes),
            observed_reals=torch.from_numpy(observed),
            observed_categoricals=torch.from_numpy(observed_codes),
            target=torch.from_numpy(target),
            target_location=torch.from_numpy(of_target.location.astype(np.float32)),
            target_scale=torch.from_numpy(of_target.scale.astype(np.float32)),
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
        return BuiltInputs(tensors, roles, sizes, preprocessing, self.constants, self.warnings, of_target.constant)

    def _features(self, block: slice) -> Features:
        """What is derived in a block; of rows that are all one block it is kept for the second pass."""
        if self._derived is not None and self._derived[0] == block.start:
            return self._derived[1]
        derived = derive(self.panel, self.config.bars, self.kind, block)
        self._derived = (block.start, derived)
        return derived

    def _values(self, name: str, block: slice) -> np.ndarray:
        """A real column's values in a block, float64, read or derived."""
        derived = self._features(block).observed
        return derived[name] if name in derived else self.panel.reals[name][block].astype(np.float64, copy=False)

    def _statistics(self) -> tuple[dict[str, Moments], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Moments by column; static reals, one value an entity; and codes for categories, 1 and up for those of the training rows,
        0 for all others."""
        by_entity = self.config.scaling is Scaling.entity
        moments = {name: Moments(self.entities, by_entity=by_entity) for name in self.scaled}
        means: dict[str, Moments] = {}
        seen = {name: np.zeros(len(self.panel.vocabularies[name]), dtype=bool) for name in self.categoricals}
        unknown: dict[str, np.ndarray] = {name: np.zeros(len(self.panel.vocabularies[name]), dtype=np.int64) for name in self.categoricals}
        for block in self.panel.blocks():
            part = self.training.part(block)
            for name in self.scaled:
                moments[name].add(self._values(name, block), part)
            for name, values in self._features(block).static_sources.items():
                means.setdefault(name, Moments(self.entities, by_entity=True)).add(values, part)
            for name in self.categoricals:
                codes = self.panel.codes[name][block]
                seen[name][codes[part.training()]] = True
                unknown[name] += np.bincount(codes, minlength=len(unknown[name]))
        static = {name: self.panel.reals[name][self.heads].astype(np.float64) for name in self.config.static_real}
        static |= {f"mean_{name}": found.finish().location for name, found in means.items()}
        return moments, static, {name: self._renumbered(name, seen[name], unknown[name]) for name in self.categoricals}

    def _renumbered(self, name: str, seen: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A code for each category of a column; `rows` says how many rows hold it."""
        vocabulary = self.panel.vocabularies[name]
        self.vocabularies[name] = [vocabulary[code] for code in np.flatnonzero(seen)]
        unknown = int(rows[~seen].sum())
        if unknown:
            values = self.panel.codes[name]
            row = next(block.start + int(np.argmax(there)) for block in self.panel.blocks() if (there := ~seen[values[block]]).any())
            self.warnings.append(
                f"{name}: {unknown} rows hold a category that no training row has, and count as unknown; "
                f"first {vocabulary[values[row]]!r} at {self.panel.place(row)}"
            )
        return np.where(seen, np.cumsum(seen), 0)

    def _fitted(self, name: str, scale: Scale) -> Scale:
        if not np.isfinite(scale.scale).all():
            farthest = [int(np.argmax(np.abs(self._values(name, block)))) + block.start for block in self.panel.blocks()]
            values = np.array([self._values(name, slice(row, row + 1))[0] for row in farthest])
            place = int(np.argmax(np.abs(values)))
            raise self._too_large(name, values[place], farthest[place])
        self._keep_scale(name, scale.location, scale.scale)
        if scale.constant.any():
            names = self.panel.entity_names
            which = "" if scale.constant.all() else f" of {', '.join(names[e] for e in np.flatnonzero(scale.constant)[:3])}"
            self.constants.append(name + which)
        return scale

    def _apply(self, name: str, scale: Scale, block: slice, part: Part) -> np.ndarray:
        """A block's values scaled, float32."""
        values = self._values(name, block)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = scale.apply(values, part).astype(np.float32)
        if not np.isfinite(scaled).all():
            farthest = int(np.argmax(np.abs(values)))
            raise self._too_large(name, values[farthest], block.start + farthest)
        return scaled

    def _too_large(self, name: str, value: float, row: int) -> DataError:
        return DataError(
            f"{name} holds values so large that float32 cannot hold them, scaled by the training rows",
            where=f"{self.panel.place(row)}: {value:g}",
            mend=f"mend the file, or give {name} in a larger unit or as a logarithm",
        )

    def _keep_scale(self, name: str, location: np.ndarray, scale: np.ndarray) -> None:
        self.scales[name] = {"location": location.tolist(), "scale": scale.tolist()}

    def _static_scaled(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Static reals scaled over the entities, float32 [entities, columns]."""
        scaled = self.panel.arrays.empty((self.entities, len(columns)), np.float32, "static_reals")
        everyone = whole(self.entities)
        for index, (name, values) in enumerate(columns.items()):
            moments = Moments(self.entities, by_entity=False)
            moments.add(values, everyone)
            scale = moments.finish()
            with np.errstate(over="ignore", invalid="ignore"):
                scaled[:, index] = scale.apply(values, everyone)
            if not (np.isfinite(scale.scale).all() and np.isfinite(scaled[:, index]).all()):
                farthest = int(np.argmax(np.abs(values)))
                raise self._too_large(name, values[farthest], int(self.heads[farthest]))
            self._keep_scale(name, scale.location[:1], scale.scale[:1])
            if self.entities > 1 and scale.constant.all():  # of a single entity every one is
                self.constants.append(name)
        return scaled

    def _static_codes(self, renumbered: Mapping[str, np.ndarray]) -> np.ndarray:
        names = self.config.static_categorical
        columns = [renumbered[name][self.panel.codes[name][self.heads]] for name in names]
        if self.config.entities:
            self.vocabularies[ENTITY] = self.panel.entity_names
            columns.append(np.arange(1, self.entities + 1))
        return np.column_stack(columns) if columns else np.empty((self.entities, 0), dtype=np.int64)

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
