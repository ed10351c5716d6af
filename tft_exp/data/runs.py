"""Runs of windows: windows of one stretch of rows that are drawn and computed together, because they share rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# To shuffle more runs than this takes longer than an epoch over a few of them.
SHUFFLED = 1 << 24


@dataclass(frozen=True)
class Runs:
    """Runs that are alike: each begins with the window of `starts`, int32 [runs] of first rows, and goes on with
    windows that begin `stride` rows later, and later again, `windows` in all."""

    starts: Tensor
    windows: int = 1
    stride: int = 1

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def count(self) -> int:
        """Windows of all runs."""
        return len(self) * self.windows

    def parts(self, windows: int) -> Iterator[Runs]:
        """Parts of so many windows, whole runs all; the last one is what is left."""
        for starts in self.starts.split(max(1, windows // self.windows)):
            yield Runs(starts, self.windows, self.stride)

    def moved_to(self, device: torch.device) -> Runs:
        return Runs(self.starts.to(device), self.windows, self.stride)


@dataclass(frozen=True)
class RunSource:
    """Where an epoch's runs are drawn from. Of each stretch of windows, whose first one has the place `begins` among `windows`, any
    of the first `places` windows can begin a run, and `runs` of them do, each in a part of its own. Host tensors, int64 [stretches]."""

    windows: Tensor  # int32 [windows], first rows, rising
    begins: Tensor
    places: Tensor
    runs: Tensor
    count: int  # of runs
    run_length: int
    stride: int

    def __len__(self) -> int:
        """Windows of an epoch: all, but for what is too little for a run of its own."""
        return self.count * self.run_length

    def draw(self, generator: torch.Generator, windows: int) -> Runs:
        """An epoch's runs in random order, on the windows' device: those with the first `windows` windows, or all. Runs of one window
        are every window once. A part of very many runs is spread evenly over them all."""
        wanted = max(1, windows // self.run_length)
        spread = self.count > SHUFFLED and wanted < self.count
        chance = None
        if self.run_length > 1:
            chance = torch.rand(wanted if spread else self.count, generator=generator, dtype=torch.float64)
        if spread:
            order = _one_of_each_part(self.count, wanted, generator)
        else:
            order = torch.randperm(self.count, generator=generator, dtype=torch.int32)[:wanted]
        if chance is None:
            places = order
        else:
            ends = self.runs.cumsum(0)
            of = torch.searchsorted(ends, order.long(), right=True)
            number, room, runs = order - (ends - self.runs)[of], self.places[of], self.runs[of]
            low, high = number * room // runs, (number + 1) * room // runs
            places = self.begins[of] + low + ((chance if spread else chance[order]) * (high - low)).long()
        return Runs(self.windows[places.to(self.windows.device)], self.run_length, self.stride)


def _one_of_each_part(count: int, parts: int, generator: torch.Generator) -> Tensor:
    """One number of each of `parts` equal parts of 0 .. `count` - 1, in random order, int64 [parts]."""
    bounds = torch.arange(parts + 1) * count // parts
    chance = torch.rand(parts, generator=generator, dtype=torch.float64)
    numbers = bounds[:-1] + (chance * (bounds[1:] - bounds[:-1])).long()
    return numbers[torch.randperm(parts, generator=generator)]


def run_source(windows: Tensor, stretches: np.ndarray, run_length: int, stride: int) -> RunSource:
    """Runs of `run_length` windows, `stride` rows apart, as many of a stretch as its windows fill, spread evenly over it.
    A stretch that holds no run is left out."""
    span = (run_length - 1) * stride + 1
    begins = np.cumsum(stretches) - stretches
    places = np.maximum(0, stretches - span + 1)
    runs = np.minimum(stretches // run_length, places)
    held = runs > 0
    begins, places, runs = begins[held], places[held], runs[held]
    count = int(runs.sum())
    return RunSource(windows, torch.from_numpy(begins), torch.from_numpy(places), torch.from_numpy(runs), count, run_length, stride)


def evaluation_runs(windows: Tensor, stretches: np.ndarray, most: int, lookback: int) -> list[Runs]:
    """Every window once, in runs of up to `most` that follow each other row by row; runs of one length together. First come
    those whose batches of `most` windows have the most rows, then those whose batches have the most windows."""
    pieces = -(-stretches // most)
    number = _numbered(pieces)
    begins, whole = (np.repeat(values, pieces) for values in (np.cumsum(stretches) - stretches, stretches))
    first, length = begins + number * most, np.minimum(most, whole - number * most)
    lengths, counts = np.unique(length, return_counts=True)
    runs = np.minimum(counts, most // lengths)  # in a batch
    most_rows = int(np.argmax(runs * (lookback + lengths - 1)))
    order = sorted(range(len(lengths)), key=lambda place: (place != most_rows, -int(runs[place] * lengths[place])))
    return [Runs(windows[torch.from_numpy(first[length == size]).to(windows.device)], int(size)) for size in lengths[order]]


def _numbered(counts: np.ndarray) -> np.ndarray:
    """0 .. count - 1 for each count, one after the other."""
    numbers: np.ndarray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers


def batches_of(runs: Sequence[Runs], windows: int) -> int:
    """How many parts of `windows` windows there are."""
    return sum(-(-len(alike) // max(1, windows // alike.windows)) for alike in runs)
