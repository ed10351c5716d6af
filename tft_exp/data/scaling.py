"""Location and scale of real columns, from training rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A spread this far below the mean is the rounding of a constant that was computed in several ways.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Scale:
    """(value - location) / scale, one pair an entity, float64 [entities]. `constant` marks entities without a spread."""

    location: np.ndarray
    scale: np.ndarray
    constant: np.ndarray

    def apply(self, values: np.ndarray, entity: np.ndarray) -> np.ndarray:
        """Scaled values as float32, [rows]; those beyond float32 come as inf."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled: np.ndarray = ((values - self.location[entity]) / self.scale[entity]).astype(np.float32)
        return scaled


def fit_scale(values: np.ndarray, entity: np.ndarray, training: np.ndarray, entities: int, *, by_entity: bool) -> Scale:
    """Mean and standard deviation of the rows where `training` is true; of each entity, or of all alike.

    A constant gets scale 1. `entity` must rise, and each entity have a training row. A spread beyond float64 comes as inf.
    """
    group = entity[training] if by_entity else np.zeros(int(training.sum()), dtype=np.int32)
    seen, groups = values[training], entities if by_entity else 1
    count = np.bincount(group, minlength=groups)
    # Counted from a value of its own group, a constant has a spread of exactly 0, and a small spread around a large
    # mean is not lost in a sum of large numbers.
    origin = seen[np.searchsorted(group, np.arange(groups))]
    with np.errstate(over="ignore", invalid="ignore"):
        off = seen - origin[group]
        center = np.bincount(group, weights=off, minlength=groups) / count
        spread = np.sqrt(np.bincount(group, weights=(off - center[group]) ** 2, minlength=groups) / count)
    mean = origin + center
    constant = spread <= ROUNDING * np.abs(mean)
    scale = np.where(constant, 1.0, spread)
    if not by_entity:
        mean, scale, constant = (np.broadcast_to(one, entities).copy() for one in (mean, scale, constant))
    return Scale(mean, scale, constant)
