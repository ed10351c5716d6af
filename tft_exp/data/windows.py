"""Windows: which rows a forecast sees and which it is scored on. Each is one integer, its first row; those of one split that follow
each other row by row are a stretch, so that they are found without looking at rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tft_exp.data.arrays import Arrays
from tft_exp.data.panel import Panel

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Cuts:
    """The first moments of validation and of test, microseconds UTC; of test beyond the last row where there is none."""

    validation_us: int
    test_us: int


def choose_cuts(times_us: Iterable[np.ndarray], validation_fraction: float, test_fraction: float) -> Cuts:
    """Cut the distinct time stamps of all parts: the last `test_fraction` of them are test, `validation_fraction` before it validation."""
    stamps = distinct(times_us)
    number = sum(len(part) for part in stamps)

    def stamp(place: int) -> int:
        for part in stamps:
            if place < len(part):
                break
            place -= len(part)
        return int(part[place])

    test = number - round(number * test_fraction)
    validation = max(0, test - max(1, round(number * validation_fraction)))
    return Cuts(stamp(validation), stamp(test) if test < number else stamp(number - 1) + 1)


def distinct(parts: Iterable[np.ndarray]) -> list[np.ndarray]:
    """The distinct values of all parts in rising order, in arrays that follow each other."""
    rising: list[np.ndarray] = []
    between: list[np.ndarray] = []  # values that are not in `rising` and do not lie after it
    for part in parts:
        values = _without_repeats(part)
        if not rising or values[0] > rising[-1][-1]:
            rising.append(values)
            continue
        if len(rising) > 1:
            rising = [np.concatenate(rising)]
        known = rising[0]
        place = int(np.searchsorted(known, values[0]))
        if np.array_equal(known[place : place + len(values)], values):  # entities that share their time stamps
            continue
        new = values[known[np.minimum(np.searchsorted(known, values), len(known) - 1)] != values]
        if len(new):
            between.append(new)
            # Not at every part: time stamps that no two entities share would be merged again and again.
            if sum(map(len, between)) > len(known):
                rising, between = [_without_repeats(np.concatenate([known, *between]))], []
    return [_without_repeats(np.concatenate([*rising, *between]))] if between else rising


def _without_repeats(values: np.ndarray) -> np.ndarray:
    # Entities are runs of rising times, which a stable sort merges; np.unique's hashing took four times as long.
    ordered = np.sort(values, kind="stable")
    kept: np.ndarray = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return kept


@dataclass(frozen=True)
class Stretches:
    """Windows that follow each other row by row: `counts[i]` of them, the first of which begins at row `firsts[i]`. int64 [stretches]."""

    firsts: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        """Windows of all stretches."""
        return int(self.counts.sum())

    def rows(self, arrays: Arrays, name: str) -> np.ndarray:
        """The first row of every window, int32 [windows], in order."""
        result = arrays.empty(len(self), np.int32, name)
        ends = np.cumsum(self.counts)
        for block in arrays.blocks(len(self)):
            number = np.arange(block.start, block.stop)
            of = np.searchsorted(ends, number, side="right")
            result[block] = self.firsts[of] + number - (ends[of] - self.counts[of])
        return result


@dataclass(frozen=True)
class WindowIndex:
    """Windows by split, and how many straddle a cut and so belong to none."""

    by_split: dict[str, Stretches]
    straddling: int


def rows_from(panel: Panel, moment_us: int) -> np.ndarray:
    """Of each entity the first row at `moment_us` or later, or one past its last row; int64 [entities]."""
    ends = zip(panel.heads[:-1].tolist(), panel.heads[1:].tolist(), strict=True)
    return np.array([head + int(np.searchsorted(panel.time_us[head:end], moment_us)) for head, end in ends], dtype=np.int64)


def index_windows(panel: Panel, cuts: Cuts, *, warm_up: int, lookback: int, horizon: int) -> WindowIndex:
    """Every window of `lookback` + `horizon` rows within a segment's rows after its warm-up, by the split of its targets.

    The lookback of a validation window may reach into training rows: those are its past.
    """
    length = lookback + horizon
    whose = panel.entity_of(panel.starts)
    validation, test = (rows_from(panel, cut)[whose] for cut in (cuts.validation_us, cuts.test_us))
    # First rows from `begin` on, before `end`: times rise within a segment, so that each split has one stretch of it.
    begin, end = panel.starts + warm_up, panel.ends - length + 1
    ranges = {
        "train": (begin, np.minimum(end, validation - length + 1)),
        "validation": (np.maximum(begin, validation - lookback), np.minimum(end, test - length + 1)),
        "test": (np.maximum(begin, test - lookback), end),
    }
    by_split = {}
    for split, (first, stop) in ranges.items():
        there = stop > first
        by_split[split] = Stretches(first[there], (stop - first)[there])
    whole = int(np.maximum(end - begin, 0).sum())
    return WindowIndex(by_split, whole - sum(len(windows) for windows in by_split.values()))
