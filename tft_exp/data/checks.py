"""What can be wrong with rows: each check finds them all, and says where the first ones stand and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tft_exp.config import DataConfig
from tft_exp.data.panel import NO_ENTITY, NO_TIME, Panel

EXAMPLES = 3
# A value this many interquartile ranges from its entity's median is stated: volumes of a busy hour reach 130.
OUTLIER_RANGES = 200.0
# A price that moves by such a factor from one bar to the next, and this far out of its entity's usual moves, is stated.
# Unadjusted splits begin at 3 for 2; of 30 large US stocks in five years no bar comes near to both.
JUMP_FACTOR = 1.4
JUMP_RANGES = 20.0

BoolArray = np.ndarray


@dataclass(frozen=True)
class Problem:
    """Rows of a panel with one fault; `text` says how many, `examples` name the first ones, `mend` what can be done."""

    what: str
    rows: BoolArray
    text: str
    examples: str
    mend: str


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural where there is not one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun[:-1] + 'ies' if noun.endswith('y') else noun + 's'}"


def _examples(panel: Panel, rows: BoolArray, columns: Sequence[str]) -> str:
    return "; ".join(panel.place(int(row), columns) for row in np.flatnonzero(rows)[:EXAMPLES])


def implausible_dates(panel: Panel, config: DataConfig) -> Iterator[Problem]:
    """Times before data.earliest, or on data.latest and later. No config asks for their repair: they mean a misread file."""
    earliest, latest = (int(np.datetime64(day, "us").astype(np.int64)) for day in (config.earliest, config.latest))
    outside = (panel.time_us != NO_TIME) & ((panel.time_us < earliest) | (panel.time_us >= latest))
    if outside.any():
        what = f"{config.time} outside {config.earliest} to {config.latest}"
        text = f"{count(int(outside.sum()), 'row')} with a {what}"
        yield Problem(what, outside, text, _examples(panel, outside, ()), "if these dates are right, set data.earliest and data.latest")


def bad_rows(panel: Panel, config: DataConfig, *, positive: bool) -> Iterator[Problem]:
    """Empty or non-finite values, bars out of order, and with `positive` prices that have no logarithm."""

    def found(what: str, rows: BoolArray, *columns: str) -> Iterator[Problem]:
        if rows.any():
            text = f"{what} in {count(int(rows.sum()), 'row')}"
            mend = "mend the file, or leave these rows out with data.on_bad_rows=drop"
            yield Problem(what, rows, text, _examples(panel, rows, columns), mend)

    yield from found(f"{config.time} is empty", panel.time_us == NO_TIME)
    yield from found(f"{' or '.join(config.entities)} is empty", panel.entity == NO_ENTITY)
    for name, values in panel.reals.items():
        yield from found(f"{name} is empty or no finite number", ~np.isfinite(values), name)
    for name, codes in panel.codes.items():
        yield from found(f"{name} is empty", codes < 0)

    bars = {name: column for name, column in vars(config.bars).items() if column is not None}
    # A comparison with an empty value finds nothing: that one is named above.
    for low, high in (("low", "high"), ("low", "open"), ("open", "high"), ("low", "close"), ("close", "high")):
        if low in bars and high in bars:
            below, above = bars[low], bars[high]
            yield from found(f"{above} lies below {below}", panel.reals[above] < panel.reals[below], above, below)
    if "volume" in bars:
        yield from found(f"{bars['volume']} is negative", panel.reals[bars["volume"]] < 0, bars["volume"])
    for name in ("open", "high", "low", "close"):
        if name in bars and positive:
            yield from found(f"{bars[name]} is not above 0", panel.reals[bars[name]] <= 0, bars[name])


def duplicates(panel: Panel) -> Iterator[Problem]:
    """Rows of a sorted panel whose entity and time are those of the row before."""
    same = np.zeros(panel.rows, dtype=bool)
    same[1:] = (panel.time_us[1:] == panel.time_us[:-1]) & (panel.entity[1:] == panel.entity[:-1])
    if not same.any():
        return
    again = np.flatnonzero(same)
    differs = {name: values[again] != values[again - 1] for name, values in (panel.reals | panel.codes).items()}
    conflicting = np.logical_or.reduce(list(differs.values()))
    examples = []
    # Those with other values first: they are the ones to look at.
    for row in again[np.argsort(~conflicting, kind="stable")][:EXAMPLES]:
        changed = [name for name, values in (panel.reals | panel.codes).items() if values[row] != values[row - 1]]
        differences = ", ".join(f"{name} {panel.value(int(row) - 1, name)} and {panel.value(int(row), name)}" for name in changed[:3])
        first, second = panel.place(int(row) - 1), panel.source.place(int(panel.file_row[row]))
        examples.append(f"{first} and {second}" + (f": {differences}" if differences else ""))
    text = f"{count(len(again), 'row')} {'repeats' if len(again) == 1 else 'repeat'} an entity and time"
    text += f" ({int(conflicting.sum())} of them with other values)"
    mend = "mend the file, or set data.on_duplicates=keep_first or keep_last"
    yield Problem("duplicates", same, text, "; ".join(examples), mend)


def static_changes(panel: Panel, config: DataConfig) -> Iterator[Problem]:
    """Rows of a sorted panel that begin another value of a static column within an entity."""
    for name in (*config.static_real, *config.static_categorical):
        values = panel.reals[name] if name in panel.reals else panel.codes[name]
        changes = np.zeros(panel.rows, dtype=bool)
        changes[1:] = (panel.entity[1:] == panel.entity[:-1]) & (values[1:] != values[:-1])
        if changes.any():
            row = int(np.argmax(changes))
            text = f"the static column {name} changes within an entity, {count(int(changes.sum()), 'time')}"
            first = f"first from {panel.value(row - 1, name)} to {panel.value(row, name)} at {panel.place(row)}"
            yield Problem(f"{name} changes", changes, text, first, f"give {name} an observed or known role")


def outliers(panel: Panel, prices: Sequence[str]) -> list[str]:
    """Warnings of values far from all others of their entity, and of steps of `prices` that look like a split not applied.

    Takes a sorted panel, cut into segments; no step is taken over a gap.
    """
    warnings = []
    inside = panel.segment[1:] == panel.segment[:-1]
    for name, values in panel.reals.items():
        middle, spread = _spread(values, panel.entity, len(panel.entity_names))
        distance = _distance(values, panel.entity, middle, spread)
        if distance.max() > OUTLIER_RANGES:
            row = int(np.argmax(distance))
            warnings.append(
                f"{name}: {int((distance > OUTLIER_RANGES).sum())} values lie more than {OUTLIER_RANGES:.0f} interquartile ranges "
                f"from their entity's median; the farthest is {values[row]:g} at {panel.place(row)}"
            )
        if name in prices and inside.any() and values.min() > 0:
            logs = np.log(values)
            later = np.flatnonzero(inside) + 1
            steps, whose = (logs[1:] - logs[:-1])[inside], panel.entity[later]
            middle, spread = _spread(steps, whose, len(panel.entity_names), or_mean=True)
            distance = _distance(steps, whose, middle, spread)
            jumps = (distance > JUMP_RANGES) & (np.abs(steps) > np.log(JUMP_FACTOR))
            if jumps.any():
                row = int(later[np.argmax(jumps)])
                warnings.append(
                    f"{name}: {count(int(jumps.sum()), 'step')} by a factor of more than {JUMP_FACTOR} from one bar to the next, "
                    f"as of a split not applied; the first from {values[row - 1]:g} to {values[row]:g} at {panel.place(row)}"
                )
    return warnings


def _spread(values: np.ndarray, entity: np.ndarray, entities: int, *, or_mean: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Median and interquartile range of each entity, [entities].

    With `or_mean` a range of 0, as of prices that mostly stand still, gives way to the mean distance from the median.
    """
    ends = np.searchsorted(entity, np.arange(entities + 1))
    middle, spread = np.zeros(entities), np.zeros(entities)
    for code in range(entities):
        own = values[ends[code] : ends[code + 1]]
        if len(own):
            at = [len(own) // 4, len(own) // 2, (3 * len(own)) // 4]
            low, middle[code], high = np.partition(own, at)[at]
            spread[code] = high - low
            if or_mean and high == low:
                spread[code] = np.abs(own - middle[code]).mean()
    return middle, spread


def _distance(values: np.ndarray, entity: np.ndarray, middle: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How many spreads a value lies from its entity's median; 0 where all values are one."""
    with np.errstate(over="ignore"):
        distance: np.ndarray = np.abs(values - middle[entity]) / np.where(spread > 0, spread, np.inf)[entity]
    return distance
