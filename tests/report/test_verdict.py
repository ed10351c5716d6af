"""What is recommended, and what no other choice beats."""

from __future__ import annotations

from dataclasses import replace

from tft_exp.report.groups import group_runs
from tft_exp.report.verdict import pareto, recommend
from tft_exp.tracking.runs import RunRow


def run(policy: str, seed: int, loss: float, *, peak: float = 500.0, seconds: float = 1.0, **tags: str) -> RunRow:
    metrics = {"summary/train_peak_allocated_mib": peak, "summary/epoch_seconds": seconds, "summary/val_loss": loss}
    known = {"outcome": "finished", "memory_quantity": "allocated", "audit": "verified", "capacity_mib": "1000", **tags}
    return RunRow(f"{policy}{seed}", f"{policy}-{seed}", "FINISHED", 0, {"policy": policy, "seed": str(seed)}, known, metrics)


def seeds(policy: str, shift: float, **figures: float) -> list[RunRow]:
    return [run(policy, seed, 0.5 + shift + seed / 100, **figures) for seed in range(4)]


def test_equal_losses_are_decided_by_time_then_memory() -> None:
    groups = group_runs([*seeds("keep", 0.0), *seeds("offload", 0.0, seconds=1.2), *seeds("recreate", 0.0, peak=400.0, seconds=1.01)])
    found = recommend(groups)
    assert found.group is not None
    assert found.group.label == "recreate"
    assert "all 4 runs with a peak of 400 MiB (40% of 1,000 MiB)" in found.text
    assert [group.label for group in pareto(groups)] == ["keep", "recreate"]


def test_a_loss_that_the_seeds_show_to_be_worse_is_not_traded_for_speed() -> None:
    worse = [run("recreate", seed, 0.53 + seed / 100 + seed % 2 / 1000, seconds=0.5) for seed in range(4)]
    found = recommend(group_runs([*seeds("keep", 0.0), *worse]))
    assert found.group is not None
    assert found.group.label == "keep"
    assert "the lowest that was seen" in found.text


def test_no_false_claim_and_no_lost_run_is_recommended() -> None:
    false = [run("stash", seed, 0.1, audit="nothing freed") for seed in range(2)]
    lost = [run("keep", 0, 0.2), run("keep", 1, 0.2, outcome="out_of_memory", out_of_memory_phase="validation")]
    assert recommend(group_runs([*false, *lost])).group is None
    found = recommend(group_runs([*false, *lost, *seeds("offload", 0.0)]))
    assert found.group is not None
    assert found.group.label == "offload"
    assert "Left out: stash (2 finished; audit: nothing freed), keep (1 finished, 1 OOM in validation)" in found.text
    assert [group.label for group in pareto(group_runs([*false, *lost, *seeds("offload", 0.0)]))] == ["offload"]


def test_a_choice_that_loses_to_the_naive_forecast_is_taken_only_where_all_do() -> None:
    """Two seeds can hardly show a loss to be worse; the naive forecast is a mark that needs no seeds."""
    fast = [replace(one, metrics={**one.metrics, "summary/naive_loss": 0.55}) for one in seeds("keep", 0.1, seconds=0.5)[:2]]
    good = [replace(one, metrics={**one.metrics, "summary/naive_loss": 0.55}) for one in seeds("offload", 0.0)[:2]]
    found = recommend(group_runs([*fast, *good]))
    assert found.group is not None
    assert (found.group.label, "naive" in found.text) == ("offload", False)
    assert "no choice beats the best naive forecast (0.5500)" in recommend(group_runs(fast)).text
