"""Location and scale of real columns, from training rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A spread this far below the mean is rounding noise of a constant.
ROUNDING = 1e-10


@dataclass(frozen=True)
class Scale:
    """(value - location) / scale, one pair an entity, float64 [entities]. `constant` marks entities without a spread."""

    location: np.ndarray
    scale: np.ndarray
    constant: np.ndarray

    def apply(self, values: np.ndarray, entity: np.ndarray) -> np.ndarray:
        """Scaled values as float32, [rows]."""
        scaled: np.ndarray = (values - self.location[entity]) / self.scale[entity]
        return scaled.astype(np.float32)


def fit_scale(values: np.ndarray, entity: np.ndarray, training: np.ndarray, entities: int, *, by_entity: bool) -> Scale:
    """Mean and standard deviation of the rows where `training` is true; of each entity, or of all alike.

    A constant gets scale 1. An entity without a training row would get NaN, and must not come here.
    """
    group = entity[training] if by_entity else np.zeros(int(training.sum()), dtype=np.int32)
    seen, groups = values[training], entities if by_entity else 1
    count = np.bincount(group, minlength=groups)
    mean = np.bincount(group, weights=seen, minlength=groups) / count
    # Two passes: the difference of two large sums would lose a small spread around a large mean.
    spread = np.sqrt(np.bincount(group, weights=(seen - mean[group]) ** 2, minlength=groups) / count)
    constant = spread <= ROUNDING * np.abs(mean)
    scale = np.where(constant, 1.0, spread)
    if not by_entity:
        mean, scale, constant = (np.broadcast_to(one, entities).copy() for one in (mean, scale, constant))
    return Scale(mean, scale, constant)
