"""The rows that statistics may be taken from: after the warm-up of their segment, and before validation."""

from __future__ import annotations

import numpy as np

from tft_exp.data.panel import Panel
from tft_exp.data.scaling import Part
from tft_exp.data.windows import Cuts, rows_from


class TrainingRows:
    """Of each segment of a panel one run of rows, told block by block."""

    def __init__(self, panel: Panel, cuts: Cuts, warm_up: int) -> None:
        self._panel = panel
        self._whose = panel.entity_of(panel.starts)
        self._begins = panel.starts + warm_up
        self._ends = np.minimum(panel.ends, rows_from(panel, cuts.validation_us)[self._whose])

    def part(self, block: slice) -> Part:
        """The block's rows by entity, and which of them are training rows."""
        panel = self._panel
        first, last = panel.entity_of(np.array([block.start, block.stop - 1])).tolist()
        bounds = np.clip(panel.heads[first : last + 2], block.start, block.stop)
        segments = np.searchsorted(panel.starts, [block.start, block.stop - 1], side="right") - 1
        here = slice(int(segments[0]), int(segments[1]) + 1)
        begins, ends = (np.clip(rows[here], block.start, block.stop) - block.start for rows in (self._begins, self._ends))
        there = begins < ends
        return Part(np.arange(first, last + 1), np.diff(bounds), begins[there], ends[there], self._whose[here][there])

    def mask(self, name: str) -> np.ndarray:
        """Which rows they are, bool [rows]."""
        rows = self._panel.arrays.empty(self._panel.rows, np.bool_, name)
        for block in self._panel.blocks():
            rows[block] = self.part(block).training()
        return rows
