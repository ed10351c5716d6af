"""Location and scale of real columns, from training rows alone, taken up block by block in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A spread this far below the mean is the rounding of a constant that was computed in several ways.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Part:
    """Rows of a block: those of entity `codes[i]` are the next `lengths[i]`; the training rows among them are those from
    `begins[j]` to `ends[j]`, of entity `whose[j]`. Places count from the block's first row; all is int64."""

    codes: np.ndarray
    lengths: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    whose: np.ndarray

    def spread(self, of_entities: np.ndarray) -> np.ndarray:
        """Each row's entity's value, [rows of the block]."""
        return np.repeat(of_entities[self.codes], self.lengths)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums of `values` over each run of training rows, like `begins`."""
        bounds = np.column_stack([self.begins, self.ends]).ravel()
        # The last run may end with the block, which no bound can say.
        found: np.ndarray = np.add.reduceat(values, bounds[:-1] if bounds[-1] == len(values) else bounds)[::2]
        return found

    def training(self) -> np.ndarray:
        """Which rows of the block are training rows, bool."""
        rows = int(self.lengths.sum())
        turns = np.bincount(self.begins, minlength=rows + 1) - np.bincount(self.ends, minlength=rows + 1)
        mask: np.ndarray = np.cumsum(turns[:-1]) > 0
        return mask


@dataclass(frozen=True)
class Scale:
    """(value - location) / scale, one pair an entity, float64 [entities]. `constant` marks entities without a spread."""

    location: np.ndarray
    scale: np.ndarray
    constant: np.ndarray

    def apply(self, values: np.ndarray, part: Part) -> np.ndarray:
        """A block's values, scaled, float64; those beyond float32 become inf there."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled: np.ndarray = values - part.spread(self.location)
            scaled /= part.spread(self.scale)
        return scaled


class Moments:
    """Mean and spread of training rows by entity, or of all alike, float64."""

    def __init__(self, entities: int, *, by_entity: bool) -> None:
        self.entities, self.by_entity = entities, by_entity
        groups = entities if by_entity else 1
        self.count, self.origin, self.center, self.squares = (np.zeros(groups) for _ in range(4))

    def add(self, values: np.ndarray, part: Part) -> None:
        """Take up a block's training rows. What is beyond float64 comes as inf or NaN."""
        if not len(part.begins):
            return
        groups = len(self.count)
        whose = part.whose if self.by_entity else np.zeros_like(part.whose)

        def of_rows(of_groups: np.ndarray) -> np.ndarray:
            return part.spread(of_groups) if self.by_entity else of_groups

        # Counted from a value of its own group, a constant has a spread of exactly 0, and a small spread around a large
        # mean is not lost in a sum of large numbers.
        new, first = np.unique(whose, return_index=True)
        unseen = self.count[new] == 0
        self.origin[new[unseen]] = values[part.begins[first[unseen]]]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            off = values - of_rows(self.origin)
            count = np.bincount(whose, weights=part.ends - part.begins, minlength=groups)
            center = np.bincount(whose, weights=part.sums(off), minlength=groups) / np.maximum(count, 1)
            off -= of_rows(center)
            off *= off
            squares = np.bincount(whose, weights=part.sums(off), minlength=groups)
            both = np.maximum(self.count + count, 1)
            apart = np.where(count > 0, center - self.center, 0.0)
            self.squares += squares + apart * apart * (self.count * count / both)
            self.center += apart * (count / both)
        self.count += count

    def finish(self) -> Scale:
        """Mean and standard deviation of each entity. A constant gets scale 1; a spread beyond float64 comes as inf.

        Each group must have had a training row.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.sqrt(self.squares / self.count)
        mean = self.origin + self.center
        constant = spread <= ROUNDING * np.abs(mean)
        scale = np.where(constant, 1.0, spread)
        if not self.by_entity:
            mean, scale, constant = (np.broadcast_to(one, self.entities).copy() for one in (mean, scale, constant))
        return Scale(mean, scale, constant)


def whole(rows: int) -> Part:
    """A block of `rows` entities of one row each, all of them training rows."""
    every = np.arange(rows)
    return Part(every, np.ones(rows, dtype=np.int64), every, every + 1, every)
