"""Values far from all others of their entity, and steps of prices that look like a split not applied: stated, never refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tft_exp.data.arrays import BLOCK
from tft_exp.data.checks import count
from tft_exp.data.panel import Panel

# A value this many interquartile ranges from its entity's median is stated: volumes of a busy hour reach 130.
OUTLIER_RANGES = 200.0
# A price that moves by such a factor from one bar to the next, and this far out of its entity's usual moves, is stated.
# Unadjusted splits begin at 3 for 2; of 30 large US stocks in five years no bar comes near to both.
JUMP_FACTOR = 1.4
JUMP_RANGES = 20.0


def outliers(panel: Panel, prices: Sequence[str]) -> list[str]:
    """Warnings of a sorted panel, cut into segments; no step is taken over a gap. Medians are of `Panel.sample`."""
    sample = panel.sample()
    ends = np.searchsorted(sample, panel.heads)
    lowest, highest, moved = _look_through(panel, prices)
    warnings = []
    for name, values in panel.reals.items():
        middle, spread = _spread(panel.arrays.picked(values, sample).astype(np.float64), ends)
        farthest = np.maximum(np.abs(lowest[name] - middle), np.abs(highest[name] - middle))
        far = np.flatnonzero(_ranges(farthest, spread) > OUTLIER_RANGES)
        if len(far):
            warnings.append(_outlier(panel, name, values, far, middle, spread))
        if len(moved.get(name, ())) and lowest[name].min() > 0:
            warnings += _jumps(panel, name, values, sample, moved[name])
    return warnings


def _look_through(panel: Panel, prices: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """By column: the lowest and the highest value of each entity, [entities], and the rows that a price moved far to."""
    entities = len(panel.heads) - 1
    lowest = {name: np.full(entities, np.inf) for name in panel.reals}
    highest = {name: np.full(entities, -np.inf) for name in panel.reals}
    moved: dict[str, list[np.ndarray]] = {name: [] for name in prices if name in panel.reals}
    for block in panel.blocks():
        first, last = panel.entity_of(np.array([block.start, block.stop - 1])).tolist()
        begins = np.append(block.start, panel.heads[first + 1 : last + 1]) - block.start
        for name, values in panel.reals.items():
            own = values[block]
            low, high = lowest[name][first : last + 1], highest[name][first : last + 1]
            np.minimum(low, np.minimum.reduceat(own, begins), out=low)
            np.maximum(high, np.maximum.reduceat(own, begins), out=high)
        for name, rows in moved.items():
            begin = max(block.start, 1)
            now, before = panel.reals[name][begin : block.stop], panel.reals[name][begin - 1 : block.stop - 1]
            # A little less than the factor, so that rounding decides nothing here.
            rows.append(np.flatnonzero((now > before * (JUMP_FACTOR - 1e-3)) | (before > now * (JUMP_FACTOR - 1e-3))) + begin)
    return lowest, highest, {name: np.setdiff1d(np.concatenate(rows), panel.starts) for name, rows in moved.items()}


def _outlier(panel: Panel, name: str, values: np.ndarray, far: np.ndarray, middle: np.ndarray, spread: np.ndarray) -> str:
    number, most, place = 0, -1.0, 0
    for code in far.tolist():
        for begin in range(int(panel.heads[code]), int(panel.heads[code + 1]), BLOCK):
            own = values[begin : min(begin + BLOCK, int(panel.heads[code + 1]))].astype(np.float64)
            distance = _ranges(np.abs(own - middle[code]), spread[code])
            number += int((distance > OUTLIER_RANGES).sum())
            if distance.max() > most:
                most, place = float(distance.max()), begin + int(np.argmax(distance))
    return (
        f"{name}: {number} values lie more than {OUTLIER_RANGES:.0f} interquartile ranges "
        f"from their entity's median; the farthest is {values[place]:g} at {panel.place(place)}"
    )


def _jumps(panel: Panel, name: str, values: np.ndarray, sample: np.ndarray, moved: np.ndarray) -> list[str]:
    def log_steps(rows: np.ndarray) -> np.ndarray:
        now, before = (panel.arrays.picked(values, those).astype(np.float64) for those in (rows, rows - 1))
        found: np.ndarray = np.log(now) - np.log(before)
        return found

    whose = panel.entity_of(moved)
    # Only entities with a far move need the usual size of their moves.
    usual = np.setdiff1d(sample[np.isin(panel.entity_of(sample), whose)], panel.starts)
    middle, spread = _spread(log_steps(usual), np.searchsorted(usual, panel.heads), or_mean=True)
    size = log_steps(moved)
    jumps = (_ranges(np.abs(size - middle[whose]), spread[whose]) > JUMP_RANGES) & (np.abs(size) > np.log(JUMP_FACTOR))
    if not jumps.any():
        return []
    row = int(moved[np.argmax(jumps)])
    return [
        f"{name}: {count(int(jumps.sum()), 'step')} by a factor of more than {JUMP_FACTOR} from one bar to the next, "
        f"as of a split not applied; the first from {values[row - 1]:g} to {values[row]:g} at {panel.place(row)}"
    ]


def _spread(values: np.ndarray, ends: np.ndarray, *, or_mean: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Median and interquartile range of each entity, [entities]; its values are those between two of `ends`.

    With `or_mean` a range of 0, as of prices that mostly stand still, gives way to the mean distance from the median.
    """
    entities = len(ends) - 1
    middle, spread = np.zeros(entities), np.zeros(entities)
    for code, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        own = values[begin:end]
        if len(own):
            at = [len(own) // 4, len(own) // 2, (3 * len(own)) // 4]
            low, middle[code], high = np.partition(own, at)[at]
            spread[code] = high - low
            if or_mean and high == low:
                spread[code] = np.abs(own - middle[code]).mean()
    return middle, spread


def _ranges(distance: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How many spreads a distance is; 0 where all values are one."""
    with np.errstate(over="ignore"):
        found: np.ndarray = distance / np.where(spread > 0, spread, np.inf)
    return found
