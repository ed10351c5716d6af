"""Runs of windows: which windows they hold, and that a batch of them is what its windows gather one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.builders import bars, load_table
from tft_exp.data.runs import Runs, batches_of, evaluation_runs, run_source

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def windows_of(lengths: list[int]) -> torch.Tensor:
    """Stretches of windows, each after a gap."""
    parts = [[100 * number + row for row in range(length)] for number, length in enumerate(lengths)]
    return torch.tensor([window for part in parts for window in part], dtype=torch.int32)


def held(runs: Runs) -> list[int]:
    return [first + step * runs.stride for first in runs.starts.tolist() for step in range(runs.windows)]


@given(LENGTHS, st.integers(1, 50))
def test_evaluation_has_every_window_once(lengths: list[int], most: int) -> None:
    windows = windows_of(lengths)
    found = evaluation_runs(windows, np.array(lengths), most, lookback=5)
    assert sorted(window for runs in found for window in held(runs)) == windows.tolist()
    assert all(runs.windows <= most for runs in found)
    parts = [part for runs in found for part in runs.parts(most)]
    assert len(parts) == batches_of(found, most)
    assert all(part.count <= most for part in parts)
    rows = [len(part) * (5 + part.windows - 1) for part in parts]
    firsts = [next(runs.parts(most)) for runs in found[:2]]
    assert max(rows) == rows[0], "the batch with the most rows comes first"
    assert max(part.count for part in parts) == max(part.count for part in firsts), "the one with the most windows then, at the latest"


@given(LENGTHS, st.integers(1, 6), st.integers(1, 7), st.integers(0, 99))
def test_training_draws_runs_of_windows_that_are_there(lengths: list[int], run_length: int, stride: int, seed: int) -> None:
    windows = windows_of(lengths)
    source = run_source(windows, np.array(lengths), run_length, stride)
    drawn = source.draw(torch.Generator().manual_seed(seed), len(source))
    there = set(windows.tolist())
    assert set(held(drawn)) <= there
    assert drawn.count == len(source)
    assert len(set(drawn.starts.tolist())) == len(drawn), "no run twice"
    if run_length == 1:
        assert sorted(held(drawn)) == sorted(there)
    span = (run_length - 1) * stride + 1
    assert len(drawn) == sum(min(length // run_length, max(0, length - span + 1)) for length in lengths)


@pytest.mark.parametrize(("run_length", "stride"), [(1, 1), (5, 1), (3, 4)])
def test_a_part_of_very_many_runs_is_spread_over_all(run_length: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tft_exp.data.runs.SHUFFLED", 10)
    windows = windows_of([70, 31, 99])
    source = run_source(windows, np.array([70, 31, 99]), run_length, stride)
    generator = torch.Generator().manual_seed(0)
    whole = source.draw(generator, len(source))
    assert len(whole) == source.count
    parts = [source.draw(generator, 14 * run_length) for _ in range(200)]
    for part in parts:
        assert len(set(part.starts.tolist())) == len(part) == 14, "no run twice"
        assert set(held(part)) <= set(windows.tolist())
        assert {start // 100 for start in part.starts.tolist()} == {0, 1, 2}, "a part of each stretch"
    assert parts[0].starts.tolist() != sorted(parts[0].starts.tolist())
    if run_length == 1:
        assert {start for part in parts for start in part.starts.tolist()} == set(windows.tolist()), "every window has its turn"


def test_another_epoch_draws_other_runs() -> None:
    source = run_source(windows_of([400]), np.array([400]), 8, 3)
    generator = torch.Generator().manual_seed(0)
    seen = [held(source.draw(generator, 400)) for _ in range(60)]
    assert len(seen[0]) == 400
    assert seen[0] != seen[1]
    assert {window for epoch in seen for window in epoch} == set(range(400)), "every window has its turn"


@pytest.mark.parametrize(("run_length", "stride"), [(1, 1), (5, 1), (3, 4)])
def test_a_batch_of_runs_holds_its_windows(run_length: int, stride: int, tmp_path) -> None:  # type: ignore[no-untyped-def]
    dataset = load_table(bars(90, ("A", "B")), tmp_path, "data.observed_real=[volume]", "data.known_real=[open]")
    rows = dataset.rows
    source = run_source(rows.windows["train"], rows.stretches["train"], run_length, stride)
    runs = source.draw(torch.Generator().manual_seed(1), 4 * run_length)
    assert len(runs) == 4
    together = rows.gather(runs)
    alone = rows.gather(Runs(torch.tensor(held(runs), dtype=torch.int32)))
    assert torch.equal(together.target, alone.target)
    assert torch.equal(together.location, alone.location)
    assert torch.equal(together.scale, alone.scale)
    for number in range(runs.count):
        run, step = divmod(number, run_length)
        for shared, own in zip(together.inputs[2:6], alone.inputs[2:6], strict=True):
            assert torch.equal(shared[run, step * stride : step * stride + own.shape[1]], own[number])
