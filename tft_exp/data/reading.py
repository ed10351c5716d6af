"""From a data config to a panel: read, checked, repaired where the config asks for it, and sorted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from tft_exp.config import DataConfig, OnBad, OnDuplicates
from tft_exp.data.arrays import BLOCK, RELEASED, Arrays
from tft_exp.data.checks import Problem, bad_rows, count, duplicates, implausible_dates, static_changes
from tft_exp.data.columns import Categories, real_type, reals, times_us
from tft_exp.data.outliers import outliers
from tft_exp.data.panel import NO_ENTITY, NO_TIME, Panel, Repair, cut_segments, steps
from tft_exp.data.source import Source, open_source, read_source
from tft_exp.data.windows import distinct
from tft_exp.errors import DataError

# Rows and windows are numbered in 32 bits.
MOST_ROWS = 2**31 - 1


def read_panel(config: DataConfig, derived: Sequence[str], arrays: Arrays | None = None) -> Panel:
    """Read and check the data that `config` names; `derived` are names that no column needs to have. The rows lie in `arrays`,
    or in memory.

    Raises DataError with everything that is wrong with the rows at once, unless the config asks for their repair.
    """
    panel = _read(config, derived, arrays or Arrays())
    refused = _Refused(config, panel)
    dates = list(implausible_dates(panel, config))
    bad = list(bad_rows(panel, config, positive=bool(derived)))
    refused.add(panel, dates)
    if config.on_bad_rows is OnBad.error:
        refused.add(panel, bad)
    else:
        panel.repairs += [Repair(f"dropped: {problem.what}", int(problem.rows.sum()), problem.examples) for problem in bad]
    usable = ~np.logical_or.reduce([problem.rows for problem in (*dates, *bad)]) if dates or bad else None
    if usable is None or usable.any():
        panel = panel if usable is None else panel.take(usable)
        panel = _without_duplicates(_sorted(panel), config, refused)
        refused.add(panel, static_changes(panel, config))
    elif config.on_bad_rows is OnBad.drop:
        refused.add(panel, [replace(problem, mend="mend the file: no row would be left") for problem in bad])
    refused.raise_if_any()
    panel = cut_segments(panel, config.max_gap_us)
    prices = [config.bars.open, config.bars.high, config.bars.low, config.bars.close]
    panel.warnings += outliers(panel, [name for name in prices if name is not None])
    return panel


def _read(config: DataConfig, derived: Sequence[str], arrays: Arrays) -> Panel:
    """All rows in the files' order, each column in the type of its role."""
    bars = [column for column in vars(config.bars).values() if column is not None]
    roles = [*config.static_real, *config.known_real, *config.observed_real]
    target = [] if config.target in derived else [config.target]
    real_names = list(dict.fromkeys([*bars, *(name for name in roles if name not in derived), *target]))
    code_names = list(dict.fromkeys([*config.static_categorical, *config.known_categorical, *config.observed_categorical]))
    text = list(dict.fromkeys([*config.entities, *code_names]))
    columns = list(dict.fromkeys([config.time, *text, *real_names]))
    files, parts = open_source(config.path, columns, [name for name in text if name not in (config.time, *real_names)])
    clash = [name for name in (*bars, *roles) if name in derived and name in files.there]
    if clash:
        raise DataError(
            f"the column {clash[0]} has the name of an input that features.kind derives, and which is meant cannot be told",
            where=f"{files.paths[0]}, column {clash[0]}",
            mend=f"rename the column, leave it out of the roles to use the derived {clash[0]}, or set features=none",
        )
    rows = files.rows
    if rows > MOST_ROWS:
        raise DataError(f"{rows:,} rows are more than the {MOST_ROWS:,} that can be told apart", where=config.path, mend="give fewer")
    time_us, codes = arrays.empty(rows, np.int64), {name: arrays.empty(rows, np.int32) for name in text}
    numbers = {name: arrays.empty(rows, real_type(files.types[name])) for name in real_names}
    found = {name: Categories(name) for name in text}

    def convert(part: Source, columns: Sequence[str]) -> dict[str, DataError]:
        """Fill in a part's rows; what columns cannot be used."""
        at = slice(part.begin, part.begin + part.table.num_rows)
        wrong = {}
        for column in columns:
            try:
                if column == config.time:
                    times, empty = times_us(part, column)
                    time_us[at] = np.where(empty, NO_TIME, times)
                if column in codes:
                    codes[column][at] = found[column].add(part)
                if column in numbers:
                    numbers[column][at] = reals(part, column)
            except DataError as error:
                wrong[column] = error
        return wrong

    for part in parts:
        wrong = convert(part, columns)
        if wrong and part.table.num_rows < rows:  # the row to name may lie in another part
            wrong |= convert(read_source(config.path, list(wrong)), list(wrong))
        if wrong:
            _raise_together(list(wrong.values()), config.path)
        if part.begin // BLOCK % RELEASED == 0:
            arrays.release()
    names = {}
    for name, categories in found.items():
        rank, names[name] = categories.finish()
        if not np.array_equal(rank[:-1], np.arange(len(rank) - 1)):
            for block in arrays.blocks(rows):
                codes[name][block] = rank[codes[name][block]]
    entity, entity_names = _entities([(codes[name], names[name]) for name in config.entities], rows, arrays)
    panel = Panel(
        time_us,
        entity,
        entity_names,
        numbers,
        {name: codes[name] for name in code_names},
        {name: names[name] for name in code_names},
        files,
        arrays,
    )
    if config.target in derived and config.target in files.there:
        panel.warnings.append(f"the target {config.target} is derived from the bars; the file's column of that name is not read")
    return panel


def _raise_together(wrong: Sequence[DataError], path: str) -> NoReturn:
    if len(wrong) == 1:
        raise wrong[0]
    lines = "".join(f"\n    {error.what}" for error in wrong)
    mends = "; ".join(dict.fromkeys(error.mend for error in wrong))
    raise DataError(f"{len(wrong)} columns cannot be used{lines}", where=path, mend=mends)


def _entities(columns: Sequence[tuple[np.ndarray, list[str]]], rows: int, arrays: Arrays) -> tuple[np.ndarray, list[str]]:
    """Entity codes int32 (NO_ENTITY where a column is empty) and their names. Several columns are joined with a slash."""
    if not columns:
        alone = arrays.empty(rows, np.int32)
        alone[:] = 0
        return alone, [""]
    codes, names = columns[0]
    for more, more_names in columns[1:]:
        codes, names = _joined(codes, names, more, more_names, arrays)
    return codes, names


def _joined(codes: np.ndarray, names: list[str], more: np.ndarray, more_names: list[str], arrays: Arrays) -> tuple[np.ndarray, list[str]]:
    def joint(block: slice) -> np.ndarray:
        pairs = codes[block].astype(np.int64) * len(more_names) + more[block]
        return np.where((codes[block] >= 0) & (more[block] >= 0), pairs, NO_ENTITY)

    there = np.concatenate(distinct(joint(block) for block in arrays.blocks(len(codes))))
    there = there[there != NO_ENTITY]
    together = arrays.empty(len(codes), np.int32)
    for block in arrays.blocks(len(codes)):
        pairs = joint(block)
        together[block] = np.where(pairs == NO_ENTITY, NO_ENTITY, np.searchsorted(there, pairs))
    return together, [f"{names[pair // len(more_names)]}/{more_names[pair % len(more_names)]}" for pair in there.tolist()]


def _sorted(panel: Panel) -> Panel:
    def behind(block: slice) -> np.ndarray:
        rises = steps(panel.entity, block, lambda now, before: now > before, first=True)
        falls = steps(panel.entity, block, lambda now, before: now < before, first=False)
        later = steps(panel.time_us, block, lambda now, before: now > before, first=True)
        found: np.ndarray = falls | ~(rises | later)
        return found

    if not panel.marked({"behind": behind}):
        return panel
    # Stable, so that rows of one entity and time keep the file's order.
    return panel.take(np.lexsort((panel.time_us, panel.entity)))


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
            rows = np.flatnonzero(problem.rows)
            self.rows[rows if panel.file_row is None else panel.file_row[rows]] = True

    def raise_if_any(self) -> None:
        if self.problems:
            lines = "".join(f"\n    {problem.text}: {problem.examples}" for problem in self.problems)
            raise DataError(
                f"{int(self.rows.sum())} of {count(len(self.rows), 'row')} cannot be used{lines}",
                where=self.config.path,
                mend="; ".join(dict.fromkeys(problem.mend for problem in self.problems)),
            )
