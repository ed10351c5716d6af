"""What can be wrong with rows: each check finds them all, and says where the first ones stand and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tft_exp.config import DataConfig
from tft_exp.data.panel import NO_ENTITY, NO_TIME, Panel, changes

EXAMPLES = 3
BoolArray = np.ndarray
Condition = Callable[[slice], BoolArray]  # which rows of a block meet it


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

    def outside(block: slice) -> BoolArray:
        times = panel.time_us[block]
        found: BoolArray = (times != NO_TIME) & ((times < earliest) | (times >= latest))
        return found

    for rows in panel.marked({"outside": outside}).values():
        what = f"{config.time} outside {config.earliest} to {config.latest}"
        text = f"{count(int(rows.sum()), 'row')} with a {what}"
        yield Problem(what, rows, text, _examples(panel, rows, ()), "if these dates are right, set data.earliest and data.latest")


def bad_rows(panel: Panel, config: DataConfig, *, positive: bool) -> Iterator[Problem]:
    """Empty or non-finite values, bars out of order, and with `positive` prices that have no logarithm."""
    shown: dict[str, tuple[str, ...]] = {}
    conditions: dict[str, Condition] = {}

    def look(what: str, condition: Condition, *columns: str) -> None:
        shown[what], conditions[what] = columns, condition

    look(f"{config.time} is empty", lambda block: panel.time_us[block] == NO_TIME)
    look(f"{' or '.join(config.entities)} is empty", lambda block: panel.entity[block] == NO_ENTITY)
    for name, values in panel.reals.items():
        look(f"{name} is empty or no finite number", partial(_not_finite, values), name)
    for name, codes in panel.codes.items():
        look(f"{name} is empty", partial(_below, codes, 0), name)

    bars = {name: column for name, column in vars(config.bars).items() if column is not None}
    # A comparison with an empty value finds nothing: that one is named above.
    for low, high in (("low", "high"), ("low", "open"), ("open", "high"), ("low", "close"), ("close", "high")):
        if low in bars and high in bars:
            below, above = bars[low], bars[high]
            look(f"{above} lies below {below}", partial(_below, panel.reals[above], panel.reals[below]), above, below)
    if "volume" in bars:
        look(f"{bars['volume']} is negative", partial(_below, panel.reals[bars["volume"]], 0), bars["volume"])
    for name in ("open", "high", "low", "close"):
        if name in bars and positive:
            look(f"{bars[name]} is not above 0", partial(_not_above_0, panel.reals[bars[name]]), bars[name])
    for what, rows in panel.marked(conditions).items():
        mend = "mend the file, or leave these rows out with data.on_bad_rows=drop"
        yield Problem(what, rows, f"{what} in {count(int(rows.sum()), 'row')}", _examples(panel, rows, shown[what]), mend)


def _not_finite(values: np.ndarray, block: slice) -> BoolArray:
    found: BoolArray = ~np.isfinite(values[block])
    return found


def _below(values: np.ndarray, limit: np.ndarray | int, block: slice) -> BoolArray:
    below: BoolArray = values[block] < (limit if isinstance(limit, int) else limit[block])
    return below


def _not_above_0(values: np.ndarray, block: slice) -> BoolArray:
    found: BoolArray = values[block] <= 0
    return found


def duplicates(panel: Panel) -> Iterator[Problem]:
    """Rows of a sorted panel whose entity and time are those of the row before."""

    def repeats(block: slice) -> BoolArray:
        same: BoolArray = ~(changes(panel.time_us, block) | changes(panel.entity, block))
        return same

    for same in panel.marked({"repeats": repeats}).values():
        again = np.flatnonzero(same)
        differs = {name: values[again] != values[again - 1] for name, values in (panel.reals | panel.codes).items()}
        conflicting = np.logical_or.reduce(list(differs.values()))
        examples = []
        # Those with other values first: they are the ones to look at.
        for row in again[np.argsort(~conflicting, kind="stable")][:EXAMPLES].tolist():
            changed = [name for name, values in (panel.reals | panel.codes).items() if values[row] != values[row - 1]]
            differences = ", ".join(f"{name} {panel.value(row - 1, name)} and {panel.value(row, name)}" for name in changed[:3])
            examples.append(f"{panel.place(row - 1)} and {panel.file_place(row)}" + (f": {differences}" if differences else ""))
        text = f"{count(len(again), 'row')} {'repeats' if len(again) == 1 else 'repeat'} an entity and time"
        text += f" ({int(conflicting.sum())} of them with other values)"
        mend = "mend the file, or set data.on_duplicates=keep_first or keep_last"
        yield Problem("duplicates", same, text, "; ".join(examples), mend)


def static_changes(panel: Panel, config: DataConfig) -> Iterator[Problem]:
    """Rows of a sorted panel that begin another value of a static column within an entity."""
    columns = {name: (panel.reals | panel.codes)[name] for name in (*config.static_real, *config.static_categorical)}

    def changed(values: np.ndarray, block: slice) -> BoolArray:
        found: BoolArray = changes(values, block) & ~changes(panel.entity, block)
        return found

    for name, rows in panel.marked({name: partial(changed, values) for name, values in columns.items()}).items():
        row = int(np.argmax(rows))
        text = f"the static column {name} changes within an entity, {count(int(rows.sum()), 'time')}"
        first = f"first from {panel.value(row - 1, name)} to {panel.value(row, name)} at {panel.place(row)}"
        yield Problem(f"{name} changes", rows, text, first, f"give {name} an observed or known role")
