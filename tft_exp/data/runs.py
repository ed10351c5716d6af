"""Runs of windows: windows of one stretch of rows that are drawn and computed together, because they share rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Runs:
    """Runs that are alike: each begins with the window of `starts`, int64 [runs, 2] of (entity, first row), and goes on with
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
    """Where an epoch's runs are drawn from. The places are host tensors, int64 [runs]: run i begins with one of the
    `choices[i]` windows from `first[i]` on, each place with the same chance."""

    windows: Tensor  # int64 [windows, 2], in order of entity and time
    first: Tensor
    choices: Tensor
    run_length: int
    stride: int

    def __len__(self) -> int:
        """Windows of an epoch: all, but for what is too little for a run of its own."""
        return len(self.first) * self.run_length

    def draw(self, generator: torch.Generator) -> Runs:
        """An epoch's runs in random order, on the windows' device. Runs of one window are every window once."""
        places = self.first
        if self.run_length > 1:
            places = places + (torch.rand(len(places), generator=generator, dtype=torch.float64) * self.choices).long()
        places = places[torch.randperm(len(places), generator=generator)]
        return Runs(self.windows[places.to(self.windows.device)], self.run_length, self.stride)


def stretches_of(windows: np.ndarray) -> np.ndarray:
    """How many windows, int64 [windows, 2], follow each other row by row before one does not: int64 [stretches]."""
    breaks = np.flatnonzero((np.diff(windows, axis=0) != (0, 1)).any(axis=1)) + 1
    return np.diff(np.concatenate([[0], breaks, [len(windows)]])) if len(windows) else np.zeros(0, dtype=np.int64)


def run_source(windows: Tensor, stretches: np.ndarray, run_length: int, stride: int) -> RunSource:
    """Runs of `run_length` windows, `stride` rows apart, as many of a stretch as its windows fill, spread evenly over it.
    A stretch that holds no run is left out."""
    span = (run_length - 1) * stride + 1
    begins = np.cumsum(stretches) - stretches
    places = np.maximum(0, stretches - span + 1)
    runs = np.minimum(stretches // run_length, places)
    number = _numbered(runs)
    begins, places, runs = (np.repeat(values, runs) for values in (begins, places, runs))
    low, high = number * places // runs, (number + 1) * places // runs
    return RunSource(windows, torch.from_numpy(begins + low), torch.from_numpy(high - low), run_length, stride)


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
