"""Rows of entities over time: sorted, and cut into segments without a gap."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tft_exp.data.source import Source

# What an empty time and an empty entity hold until their row is left out.
NO_TIME = int(np.iinfo(np.int64).min)
NO_ENTITY = -1


@dataclass(frozen=True)
class Repair:
    """Rows that were left out because the config asked for it."""

    what: str
    rows: int
    example: str


@dataclass
class Panel:
    """Rows of entities over time. All arrays have one entry a row; as `read_panel` gives them, by entity, then time.

    `time_us` is int64, microseconds UTC. `segment` numbers an entity's runs of rows without a step longer than
    data.max_gap; `position` counts a row's place in its segment from 0. `reals` are float64, `codes` int32 into
    `vocabularies`. `file_row` counts the rows of all files from 0, in the order in which they were read.
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

    def place(self, row: int, columns: Sequence[str] = ()) -> str:
        """A row as a person finds it: file, row, entity and time, and its values in `columns`."""
        name = "no entity" if self.entity[row] == NO_ENTITY else self.entity_names[self.entity[row]]
        place = f"{self.source.place(int(self.file_row[row]))} ({name + ', ' if name else ''}{moment(self.time_us[row])})"
        return f"{place}: {', '.join(f'{column} {self.value(row, column)}' for column in columns)}" if columns else place

    def value(self, row: int, column: str) -> str:
        """What a row holds in a column, as people read it."""
        if column in self.reals:
            return f"{self.reals[column][row]:.10g}"
        code = self.codes[column][row]
        return "nothing" if code < 0 else repr(self.vocabularies[column][code])

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
    if int(time_us) == NO_TIME:
        return "no time"
    try:
        return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=int(time_us))).isoformat(sep=" ")
    except OverflowError:
        return f"{int(time_us)} microseconds since 1970"


def cut_segments(panel: Panel, max_gap_us: int | None) -> Panel:
    """Number each entity's runs of rows without a step longer than `max_gap_us` (microseconds), and each row's place in its run."""
    starts = np.ones(panel.rows, dtype=bool)
    starts[1:] = panel.entity[1:] != panel.entity[:-1]
    if max_gap_us is not None:
        starts[1:] |= np.diff(panel.time_us) > max_gap_us
    panel.segment = (np.cumsum(starts) - 1).astype(np.int32)
    first = np.flatnonzero(starts)
    panel.position = (np.arange(panel.rows) - first[panel.segment]).astype(np.int32)
    return panel
