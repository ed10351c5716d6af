"""Windows: which rows a forecast sees and which it is scored on. Each is two integers, an entity and its first row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tft_exp.data.panel import Panel

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Cuts:
    """The first moments of validation and of test, microseconds UTC; of test beyond the last row where there is none."""

    validation_us: int
    test_us: int


def choose_cuts(time_us: np.ndarray, validation_fraction: float, test_fraction: float) -> Cuts:
    """Cut the distinct time stamps: the last `test_fraction` of them are test, `validation_fraction` before it validation."""
    # Entities are runs of rising times, which a stable sort merges; np.unique's hashing took four times as long.
    ordered = np.sort(time_us, kind="stable")
    stamps = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    test = len(stamps) - round(len(stamps) * test_fraction)
    validation = max(0, test - max(1, round(len(stamps) * validation_fraction)))
    return Cuts(int(stamps[validation]), int(stamps[test]) if test < len(stamps) else int(stamps[-1]) + 1)


@dataclass(frozen=True)
class WindowIndex:
    """Windows by split, int64 [windows, 2] of (entity, first row), and how many straddle a cut and so belong to none."""

    by_split: dict[str, np.ndarray]
    straddling: int


def index_windows(panel: Panel, cuts: Cuts, *, warm_up: int, lookback: int, horizon: int) -> WindowIndex:
    """Every window of `lookback` + `horizon` rows within a segment's rows after its warm-up, by the split of its targets.

    The lookback of a validation window may reach into training rows: those are its past.
    """
    length = lookback + horizon
    rows = panel.rows
    first = np.arange(max(0, rows - length + 1))
    last = first + length - 1
    whole = (panel.segment[first] == panel.segment[last]) & (panel.position[first] >= warm_up)
    first = first[whole]
    begin, end = panel.time_us[first + lookback], panel.time_us[first + length - 1]
    masks = {
        "train": end < cuts.validation_us,
        "validation": (begin >= cuts.validation_us) & (end < cuts.test_us),
        "test": begin >= cuts.test_us,
    }
    by_split = {split: np.column_stack([panel.entity[first[mask]], first[mask]]).astype(np.int64) for split, mask in masks.items()}
    return WindowIndex(by_split, len(first) - sum(len(windows) for windows in by_split.values()))
