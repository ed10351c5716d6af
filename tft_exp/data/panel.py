"""Rows of entities over time: sorted, and cut into segments without a gap."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tft_exp.data.arrays import Arrays
from tft_exp.data.source import Files

# What an empty time and an empty entity hold until their row is left out.
NO_TIME = int(np.iinfo(np.int64).min)
NO_ENTITY = -1
# Rows of all entities together, and of each one at least, that medians are taken from; of shorter ones from all.
SAMPLED_ROWS = 1 << 18
SAMPLED_ROWS_OF_EACH = 256


@dataclass(frozen=True)
class Repair:
    """Rows that were left out because the config asked for it."""

    what: str
    rows: int
    example: str


@dataclass
class Panel:
    """Rows of entities over time. All arrays have one entry a row; as `read_panel` gives them, by entity, then time.

    `time_us` is int64, microseconds UTC. `entity` is int32 into `entity_names`. `reals` are float64, or float32 where the files
    hold no more, `codes` int32 into `vocabularies`. `file_row` counts the rows of all files from 0, in the order in which they
    were read; it is None where that is the order of the rows here. All of them lie in `arrays`.

    Once `cut_segments` has been here, `heads` are the first rows of entities and, at its end, the number of rows, int64
    [entities + 1]; `starts` the first rows of segments, runs of an entity's rows without a step longer than data.max_gap,
    int64 [segments].
    """

    time_us: np.ndarray
    entity: np.ndarray
    entity_names: list[str]
    reals: dict[str, np.ndarray]
    codes: dict[str, np.ndarray]
    vocabularies: dict[str, list[str]]
    files: Files
    arrays: Arrays
    file_row: np.ndarray | None = None
    repairs: list[Repair] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    heads: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def rows(self) -> int:
        return len(self.time_us)

    @property
    def ends(self) -> np.ndarray:
        """One past the last row of each segment, int64 [segments]."""
        return np.append(self.starts[1:], self.rows)

    def blocks(self) -> Iterator[slice]:
        return self.arrays.blocks(self.rows)

    def entity_of(self, rows: np.ndarray) -> np.ndarray:
        """Entity codes of some rows, int64; looks at no row's own."""
        codes: np.ndarray = np.searchsorted(self.heads, rows, side="right") - 1
        return codes

    def sample(self) -> np.ndarray:
        """Rows to take medians from, rising, int64: of each entity all, or as many as chance takes of a long one."""
        entities = len(self.heads) - 1
        most = max(SAMPLED_ROWS_OF_EACH, SAMPLED_ROWS // entities)
        random = np.random.default_rng(0)
        parts = []
        for head, end in zip(self.heads[:-1].tolist(), self.heads[1:].tolist(), strict=True):
            # One of every `most` equal parts, so that no rhythm of the rows is met.
            spaced = (np.arange(most) + random.random(most)) * ((end - head) / most)
            parts.append(np.arange(head, end) if end - head <= most else head + spaced.astype(np.int64))
        return np.concatenate(parts)

    def marked(self, conditions: Mapping[str, Callable[[slice], np.ndarray]]) -> dict[str, np.ndarray]:
        """Masks of the rows that meet a condition, [rows], of those conditions that any row meets. Each takes a block of rows."""
        found: dict[str, np.ndarray] = {}
        for block in self.blocks():
            for name, condition in conditions.items():
                here = condition(block)
                if here.any():
                    found.setdefault(name, np.zeros(self.rows, dtype=bool))[block] = here
        return {name: found[name] for name in conditions if name in found}

    def file_place(self, row: int) -> str:
        return self.files.place(row if self.file_row is None else int(self.file_row[row]))

    def place(self, row: int, columns: Sequence[str] = ()) -> str:
        """A row as a person finds it: file, row, entity and time, and its values in `columns`."""
        name = "no entity" if self.entity[row] == NO_ENTITY else self.entity_names[self.entity[row]]
        place = f"{self.file_place(row)} ({name + ', ' if name else ''}{moment(self.time_us[row])})"
        return f"{place}: {', '.join(f'{column} {self.value(row, column)}' for column in columns)}" if columns else place

    def value(self, row: int, column: str) -> str:
        """What a row holds in a column, as people read it."""
        if column in self.reals:
            return f"{self.reals[column][row]:.10g}"
        code = self.codes[column][row]
        return "nothing" if code < 0 else repr(self.vocabularies[column][code])

    def take(self, kept: np.ndarray) -> Panel:
        """The rows at `kept` (a mask or an index), in their order; segments are left to `cut_segments`."""
        taken = self.arrays.taken
        rows = kept if self.file_row is not None else np.flatnonzero(kept) if kept.dtype == bool else kept
        return replace(
            self,
            time_us=taken(self.time_us, kept),
            entity=taken(self.entity, kept),
            reals={name: taken(values, kept) for name, values in self.reals.items()},
            codes={name: taken(values, kept) for name, values in self.codes.items()},
            file_row=rows if self.file_row is None else taken(self.file_row, kept),
        )


def moment(time_us: int) -> str:
    """A time as people read it; microseconds only where there are some."""
    if int(time_us) == NO_TIME:
        return "no time"
    try:
        return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=int(time_us))).isoformat(sep=" ")
    except OverflowError:
        return f"{int(time_us)} microseconds since 1970"


def changes(values: np.ndarray, block: slice) -> np.ndarray:
    """Whether a row's value is another than that of the row before, bool [block]; the first row of all is."""
    return steps(values, block, lambda now, before: now != before, first=True)


def steps(values: np.ndarray, block: slice, compare: Callable[[np.ndarray, np.ndarray], np.ndarray], *, first: bool) -> np.ndarray:
    """`compare` a block's values with those of the rows before, bool [block]; the first row of all, which has none, is `first`."""
    begin = max(block.start, 1)
    found = compare(values[begin : block.stop], values[begin - 1 : block.stop - 1])
    return found if begin == block.start else np.append(first, found)


def cut_segments(panel: Panel, max_gap_us: int | None) -> Panel:
    """Find where entities begin, and each one's runs of rows without a step longer than `max_gap_us` (microseconds)."""
    found = []
    for block in panel.blocks():
        starts = changes(panel.entity, block)
        if max_gap_us is not None:
            starts = starts | steps(panel.time_us, block, lambda now, before: now - before > max_gap_us, first=True)
        found.append(np.flatnonzero(starts) + block.start)
    panel.starts = np.concatenate(found)
    panel.heads = np.append(np.searchsorted(panel.entity, np.arange(len(panel.entity_names), dtype=np.int32)), panel.rows)
    return panel
