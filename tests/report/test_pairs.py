"""Differences paired by seed."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from rich.console import Console

from tft_exp.errors import TrackingError
from tft_exp.report.groups import group_runs
from tft_exp.report.pairs import Difference, differences_table, paired_difference
from tft_exp.tracking.runs import RunRow


def test_the_interval_is_students_t_of_the_differences() -> None:
    rng = random.Random(0)
    reference = {str(seed): rng.gauss(0.5, 0.1) for seed in range(8)}
    values = {seed: value + rng.gauss(0.02, 0.01) for seed, value in reference.items()}
    found = paired_difference(values, reference)
    assert found is not None
    differences = [values[seed] - reference[seed] for seed in reference]
    mean, half = statistics.fmean(differences), 2.364624 * statistics.stdev(differences) / math.sqrt(8)  # t of 7 degrees, 97.5 %
    assert (found.pairs, found.mean) == (8, pytest.approx(mean))
    assert (found.low, found.high) == (pytest.approx(mean - half), pytest.approx(mean + half))
    assert found.reference_mean == pytest.approx(statistics.fmean(reference.values()))


def test_only_seeds_of_both_are_paired() -> None:
    found = paired_difference({"0": 1.0, "1": 2.5, "9": 100.0}, {"0": 0.5, "1": 1.0, "7": -100.0})
    assert found is not None
    assert (found.pairs, found.mean) == (2, 1.0)
    assert paired_difference({"0": 1.0}, {"0": 1.0}) is None


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-2.0, -1.0, "lower"), (1.0, 2.0, "higher"), (-1.0, 1.0, "no difference seen"), (0.0, 0.0, "the same, bit for bit")],
)
def test_words_follow_the_interval(low: float, high: float, words: str) -> None:
    assert Difference(8, (low + high) / 2, low, high, 1.0).words == words


def test_equal_losses_are_said_to_be_equal() -> None:
    same = {str(seed): 0.5 + seed for seed in range(4)}
    found = paired_difference(same, dict(same))
    assert found is not None
    assert found.words == "the same, bit for bit"


def run(policy: str, seed: int, target: str, loss: float) -> RunRow:
    params = {"policy": policy, "seed": str(seed), "data.target": target}
    metrics = {"summary/val_loss": loss, "summary/last_val_loss": loss + 1}
    return RunRow(f"{policy}{seed}{target}", "name", "FINISHED", 0, params, {"outcome": "finished"}, metrics)


def rendered(runs: list[RunRow], policy: str) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(differences_table(group_runs(runs), policy))
    return capture.get()


def test_each_choice_is_held_against_the_reference_of_its_own_kind() -> None:
    offsets = {"keep": 0.0, "recreate": 0.25}
    base = {"volume": 10.0, "returns": 2.0}
    runs = [run(p, seed, t, base[t] + seed / 100 + offsets[p] * (1 + seed / 10)) for t in base for p in offsets for seed in range(4)]
    shown = rendered(runs, "keep")
    assert shown.count("recreate") == 2
    assert shown.count("higher") == 4
    assert "+0.2875" in shown  # 0.25 * (1 + the mean of 0, .1, .2, .3)
    assert "(+2.9%)" in shown
    assert "(+14." in shown


def test_a_reference_that_is_not_there_is_named() -> None:
    with pytest.raises(TrackingError) as caught:
        rendered([run("keep", 0, "x", 1.0), run("stash", 0, "x", 1.0)], "recreate")
    assert "no run of the sweep has policy=recreate" in str(caught.value)
    assert "keep, stash" in str(caught.value)
