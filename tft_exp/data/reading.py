"""From a data config to a panel: read, checked, repaired where the config asks for it, and sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from tft_exp.config import DataConfig, OnBad, OnDuplicates
from tft_exp.data.checks import Problem, bad_rows, count, duplicates, implausible_dates, outliers, static_changes
from tft_exp.data.columns import categories, reals, times_us
from tft_exp.data.panel import NO_ENTITY, NO_TIME, Panel, Repair, cut_segments
from tft_exp.data.source import Source, read_source
from tft_exp.errors import DataError

Converted = TypeVar("Converted")


def read_panel(config: DataConfig, derived: Sequence[str]) -> Panel:
    """Read and check the data that `config` names; `derived` are names that no column needs to have.

    Raises DataError with everything that is wrong with the rows at once, unless the config asks for their repair.
    """
    panel = _read(config, derived)
    refused = _Refused(config, panel)
    dates = list(implausible_dates(panel, config))
    bad = list(bad_rows(panel, config, positive=bool(derived)))
    refused.add(panel, dates)
    if config.on_bad_rows is OnBad.error:
        refused.add(panel, bad)
    else:
        panel.repairs += [Repair(f"dropped: {problem.what}", int(problem.rows.sum()), problem.examples) for problem in bad]
    usable = ~np.logical_or.reduce([np.zeros(panel.rows, dtype=bool), *(problem.rows for problem in (*dates, *bad))])
    if usable.any():
        panel = panel if usable.all() else panel.take(usable)
        panel = _without_duplicates(_sorted(panel), config, refused)
        refused.add(panel, static_changes(panel, config))
    elif config.on_bad_rows is OnBad.drop:
        refused.add(panel, [replace(problem, mend="mend the file: no row would be left") for problem in bad])
    refused.raise_if_any()
    panel = cut_segments(panel, config.max_gap_us)
    prices = [config.bars.open, config.bars.high, config.bars.low, config.bars.close]
    panel.warnings += outliers(panel, [name for name in prices if name is not None])
    return panel


def _read(config: DataConfig, derived: Sequence[str]) -> Panel:
    """All rows in the files' order, each column in the type of its role."""
    bars = [column for column in vars(config.bars).values() if column is not None]
    roles = [*config.static_real, *config.known_real, *config.observed_real]
    target = [] if config.target in derived else [config.target]
    real_names = list(dict.fromkeys([*bars, *(name for name in roles if name not in derived), *target]))
    code_names = list(dict.fromkeys([*config.static_categorical, *config.known_categorical, *config.observed_categorical]))
    text = list(dict.fromkeys([*config.entities, *code_names]))
    source = read_source(
        config.path,
        list(dict.fromkeys([config.time, *text, *real_names])),
        [name for name in text if name not in (config.time, *real_names)],
    )
    clash = [name for name in (*bars, *roles) if name in derived and name in source.there]
    if clash:
        raise DataError(
            f"the column {clash[0]} has the name of an input that features.kind derives, and which is meant cannot be told",
            where=f"{source.files[0]}, column {clash[0]}",
            mend=f"rename the column, leave it out of the roles to use the derived {clash[0]}, or set features=none",
        )
    wrong: list[DataError] = []
    times = _converted(times_us, source, [config.time], wrong)
    encoded = _converted(categories, source, text, wrong)
    numbers = _converted(reals, source, real_names, wrong)
    _raise_together(wrong, config.path)
    time_us, no_time = times[config.time]
    entity, names = _entities([encoded[name] for name in config.entities], len(time_us))
    rows = len(time_us)
    panel = Panel(
        np.where(no_time, NO_TIME, time_us),
        entity,
        names,
        numbers,
        {name: encoded[name][0] for name in code_names},
        {name: encoded[name][1] for name in code_names},
        np.zeros(rows, dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
        source,
        np.arange(rows),
        rows,
    )
    if config.target in derived and config.target in source.there:
        panel.warnings.append(f"the target {config.target} is derived from the bars; the file's column of that name is not read")
    return panel


def _converted(
    convert: Callable[[Source, str], Converted], source: Source, columns: Sequence[str], wrong: list[DataError]
) -> dict[str, Converted]:
    """Each column in the type of its role; what cannot be is added to `wrong`."""
    found = {}
    for column in columns:
        try:
            found[column] = convert(source, column)
        except DataError as error:
            wrong.append(error)
    return found


def _raise_together(wrong: Sequence[DataError], path: str) -> None:
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        lines = "".join(f"\n    {error.what}" for error in wrong)
        mends = "; ".join(dict.fromkeys(error.mend for error in wrong))
        raise DataError(f"{len(wrong)} columns cannot be used{lines}", where=path, mend=mends)


def _entities(columns: Sequence[tuple[np.ndarray, list[str]]], rows: int) -> tuple[np.ndarray, list[str]]:
    """Entity codes int32 (NO_ENTITY where a column is empty) and their names. Several columns are joined with a slash."""
    if not columns:
        return np.zeros(rows, dtype=np.int32), [""]
    codes, names = columns[0]
    for more, more_names in columns[1:]:
        whole = (codes >= 0) & (more >= 0)
        joint = codes[whole].astype(np.int64) * len(more_names) + more[whole]
        found, together = np.unique(joint, return_inverse=True)
        codes = np.full(len(more), NO_ENTITY)
        codes[whole] = together
        names = [f"{names[joined // len(more_names)]}/{more_names[joined % len(more_names)]}" for joined in found.tolist()]
    return codes.astype(np.int32), names


def _sorted(panel: Panel) -> Panel:
    later = panel.time_us[1:] > panel.time_us[:-1]
    in_order = (panel.entity[1:] > panel.entity[:-1]) | ((panel.entity[1:] == panel.entity[:-1]) & later)
    # Stable, so that rows of one entity and time keep the file's order.
    return panel if in_order.all() else panel.take(np.lexsort((panel.time_us, panel.entity)))


def _without_duplicates(panel: Panel, config: DataConfig, refused: _Refused) -> Panel:
    for problem in duplicates(panel):
        same = problem.rows
        if config.on_duplicates is OnDuplicates.error:
            refused.add(panel, [problem])
            return panel
        panel.repairs.append(Repair(f"duplicates, {config.on_duplicates.value}", int(same.sum()), problem.examples))
        dropped = same if config.on_duplicates is OnDuplicates.keep_first else np.append(same[1:], False)
        return panel.take(~dropped)
    return panel


class _Refused:
    """Problems that no key asks to repair, gathered over all checks so that one error can name them all."""

    def __init__(self, config: DataConfig, panel: Panel) -> None:
        self.config = config
        self.rows = np.zeros(panel.rows, dtype=bool)  # in the files' order
        self.problems: list[Problem] = []

    def add(self, panel: Panel, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.problems.append(problem)
            self.rows[panel.file_row[problem.rows]] = True

    def raise_if_any(self) -> None:
        if self.problems:
            lines = "".join(f"\n    {problem.text}: {problem.examples}" for problem in self.problems)
            raise DataError(
                f"{int(self.rows.sum())} of {count(len(self.rows), 'row')} cannot be used{lines}",
                where=self.config.path,
                mend="; ".join(dict.fromkeys(problem.mend for problem in self.problems)),
            )
