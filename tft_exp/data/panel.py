"""Rows of entities over time: checked, sorted, and cut into segments without a gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tft_exp.config import DataConfig, OnBad, OnDuplicates
from tft_exp.data.source import Source, categories, read_source, reals, times_us
from tft_exp.errors import DataError

EXAMPLES = 3
# A value this many interquartile ranges from the median is stated; real bars of a crash stay well below.
OUTLIER_RANGES = 200.0

BoolArray = np.ndarray


@dataclass(frozen=True)
class Repair:
    """Rows that were left out because the config asked for it."""

    what: str
    rows: int
    example: str


@dataclass
class Panel:
    """Rows sorted by entity, then time. All arrays have one entry a row.

    `segment` numbers an entity's runs of rows without a step longer than `max_gap`; `position` counts a row's place in
    its segment from 0. `reals` are float64, `codes` int32 into `vocabularies`.
    """

    time_us: np.ndarray
    entity: np.ndarray
    entity_names: list[str]
    reals: dict[str, np.ndarray]
    codes: dict[str, np.ndarray]
    vocabularies: dict[str, list[str]]
    segment: np.ndarray
    position: np.ndarray
    source: Source
    file_row: np.ndarray
    rows_read: int
    repairs: list[Repair] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.time_us)

    def place(self, row: int) -> str:
        """A row as a person finds it: file, row, entity and time."""
        name = self.entity_names[self.entity[row]]
        return f"{self.source.place(int(self.file_row[row]))} ({name + ', ' if name else ''}{moment(self.time_us[row])})"

    def take(self, kept: np.ndarray) -> Panel:
        """The rows at `kept` (a mask or an index), in their order; segments are left to `cut_segments`."""
        return Panel(
            self.time_us[kept],
            self.entity[kept],
            self.entity_names,
            {name: values[kept] for name, values in self.reals.items()},
            {name: values[kept] for name, values in self.codes.items()},
            self.vocabularies,
            self.segment[kept],
            self.position[kept],
            self.source,
            self.file_row[kept],
            self.rows_read,
            self.repairs,
            self.warnings,
        )


def moment(time_us: int) -> str:
    """A time as people read it; microseconds only where there are some."""
    try:
        return pd.Timestamp(int(time_us), unit="us").isoformat(sep=" ")
    except (ValueError, OverflowError):
        return f"{int(time_us)} microseconds since 1970"


def read_panel(config: DataConfig, derived: Sequence[str]) -> Panel:
    """Read and check the data that `config` names; `derived` are names that no column needs to have.

    Raises DataError with everything that is wrong with the rows at once, unless the config asks for their repair.
    """
    bars = {name: column for name, column in vars(config.bars).items() if column is not None}
    real_names = [*config.static_real, *config.known_real, *config.observed_real]
    if config.target not in derived:
        real_names.append(config.target)
    real_names = list(dict.fromkeys([*bars.values(), *(name for name in real_names if name not in derived)]))
    code_names = [*config.static_categorical, *config.known_categorical, *config.observed_categorical]
    source = read_source(config.path, list(dict.fromkeys([config.time, *config.entities, *real_names, *code_names])))

    time_us, no_time = times_us(source, config.time)
    entity, names, no_entity = _entities(source, config.entities)
    codes, vocabularies = {}, {}
    for name in code_names:
        codes[name], vocabularies[name] = categories(source, name)
    rows = len(time_us)
    panel = Panel(
        time_us,
        entity,
        names,
        {name: reals(source, name) for name in real_names},
        codes,
        vocabularies,
        np.zeros(rows, dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
        source,
        np.arange(rows),
        rows,
    )
    problems = [(f"{config.time} is empty", no_time)]
    problems += [(f"{', '.join(config.entities)} is empty", no_entity)] if config.entities else []
    problems += [(f"{name} is empty or no finite number", ~np.isfinite(values)) for name, values in panel.reals.items()]
    problems += [(f"{name} is empty", values < 0) for name, values in codes.items()]
    _check_dates(panel, config, no_time)
    problems += _bar_problems({name: panel.reals[column] for name, column in bars.items()}, bars, positive=bool(derived))
    panel = _without_bad_rows(panel, problems, config)
    panel = _sorted_without_duplicates(panel, config)
    _check_static(panel, config)
    _state_outliers(panel)
    return cut_segments(panel, config.max_gap)


def _entities(source: Source, columns: Sequence[str]) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Entity codes int32, their names, and a mask of rows without one. Several columns are joined with a slash."""
    rows = source.table.num_rows
    if not columns:
        return np.zeros(rows, dtype=np.int32), [""], np.zeros(rows, dtype=bool)
    codes, names = categories(source, columns[0])
    empty = codes < 0
    for column in columns[1:]:
        more, more_names = categories(source, column)
        empty |= more < 0
        joint = codes.astype(np.int64) * max(1, len(more_names)) + more
        found, codes = np.unique(np.where(empty, -1, joint), return_inverse=True)
        names = [
            "" if joined < 0 else f"{names[joined // len(more_names)]}/{more_names[joined % len(more_names)]}" for joined in found.tolist()
        ]
    return codes.astype(np.int32), names, empty


def _check_dates(panel: Panel, config: DataConfig, no_time: BoolArray) -> None:
    earliest, latest = (int(pd.Timestamp(day).timestamp() * 1e6) for day in (config.earliest, config.latest))
    outside = ~no_time & ((panel.time_us < earliest) | (panel.time_us >= latest))
    if outside.any():
        row = int(np.argmax(outside))
        raise DataError(
            f"{int(outside.sum())} of {panel.rows} rows have a {config.time} outside {config.earliest} to {config.latest}",
            where=panel.place(row),
            mend="if these dates are right, set data.earliest and data.latest",
        )


def _bar_problems(bars: dict[str, np.ndarray], columns: dict[str, str], *, positive: bool) -> list[tuple[str, BoolArray]]:
    """Prices out of order, and with `positive` those that have no logarithm; a comparison with an empty value finds nothing."""
    problems: list[tuple[str, BoolArray]] = []

    def compare(low: str, high: str) -> None:
        if low in bars and high in bars:
            problems.append((f"{columns[high]} lies below {columns[low]}", bars[high] < bars[low]))

    compare("low", "high")
    for name in ("open", "close"):
        compare("low", name)
        compare(name, "high")
    if "volume" in bars:
        problems.append((f"{columns['volume']} is negative", bars["volume"] < 0))
    for name in ("open", "high", "low", "close"):
        if name in bars and positive:
            problems.append((f"{columns[name]} is not above 0", bars[name] <= 0))
    return problems


def _without_bad_rows(panel: Panel, problems: Sequence[tuple[str, BoolArray]], config: DataConfig) -> Panel:
    found = [(what, mask) for what, mask in problems if mask.any()]
    if not found:
        return panel
    bad = np.logical_or.reduce([mask for _, mask in found])

    def examples(mask: BoolArray) -> str:
        return "; ".join(panel.place(int(row)) for row in np.flatnonzero(mask)[:EXAMPLES])

    if config.on_bad_rows is OnBad.error:
        lines = [f"{what} in {int(mask.sum())} rows: {examples(mask)}" for what, mask in found]
        raise DataError(
            f"{int(bad.sum())} of {panel.rows} rows cannot be used" + "".join(f"\n    {line}" for line in lines),
            where=config.path,
            mend="mend the file, or leave these rows out with data.on_bad_rows=drop",
        )
    panel.repairs += [Repair(f"dropped: {what}", int(mask.sum()), examples(mask)) for what, mask in found]
    if bad.all():
        raise DataError(f"all {panel.rows} rows are unusable: {found[0][0]}", where=config.path)
    return panel.take(~bad)


def _sorted_without_duplicates(panel: Panel, config: DataConfig) -> Panel:
    key_time, key_entity = panel.time_us, panel.entity
    in_order = bool(np.all((key_entity[1:] > key_entity[:-1]) | ((key_entity[1:] == key_entity[:-1]) & (key_time[1:] > key_time[:-1]))))
    if in_order:
        return panel
    # Stable, so that rows of one entity and time keep the file's order.
    panel = panel.take(np.lexsort((panel.time_us, panel.entity)))
    same = (panel.time_us[1:] == panel.time_us[:-1]) & (panel.entity[1:] == panel.entity[:-1])
    if not same.any():
        return panel
    second = int(np.argmax(same)) + 1
    example = f"{panel.place(second - 1)} and {panel.source.place(int(panel.file_row[second]))}"
    if config.on_duplicates is OnDuplicates.error:
        pairs = np.flatnonzero(same)
        conflicting = np.zeros(len(pairs), dtype=bool)
        for values in [*panel.reals.values(), *panel.codes.values()]:
            conflicting |= values[pairs] != values[pairs + 1]
        raise DataError(
            f"{int(same.sum())} rows repeat an entity and time ({int(conflicting.sum())} of them with other values)",
            where=example,
            mend="mend the file, or set data.on_duplicates=keep_first or keep_last",
        )
    dropped = np.append(False, same) if config.on_duplicates is OnDuplicates.keep_first else np.append(same, False)
    panel.repairs.append(Repair(f"duplicates, {config.on_duplicates.value}", int(same.sum()), example))
    return panel.take(~dropped)


def _check_static(panel: Panel, config: DataConfig) -> None:
    same_entity = panel.entity[1:] == panel.entity[:-1]
    for name in (*config.static_real, *config.static_categorical):
        values = panel.reals.get(name, panel.codes.get(name))
        if values is None:
            continue
        changes = same_entity & (values[1:] != values[:-1])
        if changes.any():
            row = int(np.argmax(changes)) + 1
            before, after = (panel.vocabularies[name][v] if name in panel.codes else v for v in (values[row - 1], values[row]))
            raise DataError(
                f"the static column {name} changes within an entity, {int(changes.sum())} times; first from {before} to {after}",
                where=panel.place(row),
                mend=f"give {name} an observed or known role",
            )


def _state_outliers(panel: Panel) -> None:
    for name, values in panel.reals.items():
        quarter, middle, three = np.quantile(values, [0.25, 0.5, 0.75])
        spread = three - quarter
        if spread <= 0:
            continue
        distance = np.abs(values - middle) / spread
        far = int((distance > OUTLIER_RANGES).sum())
        if far:
            row = int(np.argmax(distance))
            panel.warnings.append(
                f"{name}: {far} values lie more than {OUTLIER_RANGES:.0f} interquartile ranges from the median; "
                f"the farthest is {values[row]:g} at {panel.place(row)}"
            )


def cut_segments(panel: Panel, max_gap: str | None) -> Panel:
    """Number each entity's runs of rows without a step longer than `max_gap`, and each row's place in its run."""
    starts = np.ones(panel.rows, dtype=bool)
    starts[1:] = panel.entity[1:] != panel.entity[:-1]
    if max_gap is not None:
        starts[1:] |= np.diff(panel.time_us) > pd.Timedelta(max_gap) // pd.Timedelta(1, "us")
    panel.segment = (np.cumsum(starts) - 1).astype(np.int32)
    first = np.flatnonzero(starts)
    panel.position = (np.arange(panel.rows) - first[panel.segment]).astype(np.int32)
    return panel
