"""What a data file holds and what was done to it, for a person to read."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tft_exp.data.panel import Panel, Repair, moment

SHOWN_ENTITIES = 6
SHOWN_GAPS = 3


@dataclass
class DataReport:
    """Counts of rows, entities, segments and windows, and every repair and warning."""

    path: str
    files: int
    rows_read: int
    rows_used: int
    entity_names: list[str]
    first: str
    last: str
    median_step: str
    segments: int
    longest_gaps: list[str]
    inputs: Mapping[str, list[str]]
    target: str
    cuts: Mapping[str, str]
    windows: Mapping[str, int]
    straddling: int
    warm_up_rows: int
    constants: list[str]
    repairs: list[Repair] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def render(self) -> str:
        """The report as plain text, a label and its value a line."""
        names = ", ".join(self.entity_names[:SHOWN_ENTITIES]) + (", ..." if len(self.entity_names) > SHOWN_ENTITIES else "")
        lines = [
            ("data", f"{self.path}" + (f" ({self.files} files)" if self.files > 1 else "")),
            ("rows", f"{self.rows_read:,} read, {self.rows_used:,} used"),
            ("entities", f"{len(self.entity_names):,}" + (f": {names}" if names else "")),
            ("time", f"{self.first} to {self.last} UTC, median step {self.median_step}"),
            (
                "segments",
                f"{self.segments:,} without a gap" + (f"; longest gaps: {'; '.join(self.longest_gaps)}" if self.longest_gaps else ""),
            ),
            ("target", self.target),
            *((f"{role} inputs", f"{len(inputs)}: {_shorten(inputs)}" if inputs else "none") for role, inputs in self.inputs.items()),
            ("split", ", ".join(f"{split} from {start}" for split, start in self.cuts.items())),
            ("windows", ", ".join(f"{count:,} {split}" for split, count in self.windows.items())),
            ("left out", f"{self.straddling:,} windows across a cut, {self.warm_up_rows:,} warm-up rows of the derived inputs"),
        ]
        if self.constants:
            lines.append(("constant", f"in the training rows: {_shorten(self.constants)}"))
        lines += [
            ("repaired", f"{repair.what}: {repair.rows:,} {'row' if repair.rows == 1 else 'rows'} ({repair.example})")
            for repair in self.repairs
        ]
        lines += [("warning", warning) for warning in self.warnings]
        width = max(len(label) for label, _ in lines)
        return "".join(f"{label:<{width}}  {value}\n" for label, value in lines).rstrip("\n")


def _shorten(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 16 else f"{', '.join(names[:8])}, ... {', '.join(names[-3:])}"


def step_and_gaps(panel: Panel) -> tuple[str, list[str]]:
    """The median step within a segment, over `Panel.sample`, and the longest gaps that segments were cut at."""
    inside = np.setdiff1d(panel.sample(), panel.starts, assume_unique=True)
    lengths = panel.arrays.picked(panel.time_us, inside) - panel.arrays.picked(panel.time_us, inside - 1)
    median = _duration(float(np.median(lengths))) if len(inside) else "none"
    cut = np.setdiff1d(panel.starts, panel.heads)
    gaps = panel.time_us[cut] - panel.time_us[cut - 1]
    longest = np.argsort(-gaps, kind="stable")[:SHOWN_GAPS]
    return median, [f"{_duration(float(gaps[place]))} after {moment(panel.time_us[cut[place] - 1])}" for place in longest]


def _duration(microseconds: float) -> str:
    length = datetime.timedelta(microseconds=microseconds)
    days, rest = length.days, str(datetime.timedelta(seconds=length.seconds, microseconds=length.microseconds))
    clock = rest if rest.index(":") == 2 else f"0{rest}"
    if days and clock == "00:00:00":
        return f"{days} days"
    return f"{days} days {clock}" if days else clock
