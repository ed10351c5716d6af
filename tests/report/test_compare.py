"""The comparison's table in terminals of any width."""

from __future__ import annotations

import pytest
from rich.console import Console

from tft_exp.report.compare import TABLE_WIDTH, comparison_table
from tft_exp.report.groups import group_runs
from tft_exp.tracking.runs import RunRow


def run(policy: str, seed: int) -> RunRow:
    metrics = {
        "summary/train_peak_allocated_mib": 1234.5,
        "summary/validation_peak_allocated_mib": 2906.0,
        "summary/audit/claimed_mib": 1237.98,
        "summary/audit/freed_mib": 1238.06,
        "summary/optimizer_state_mib": 1237.98,
        "summary/state_in_validation_mib": 0.0,
        "summary/epoch_seconds": 47.3,
        "summary/val_loss": 0.5 + seed / 10,
        "summary/skill": 0.1,
        "summary/naive_loss": 0.6,
    }
    metrics |= {f"summary/val_q_risk_p{p}": 0.5 for p in (10, 50, 90)}
    tags = {
        "outcome": "finished",
        "memory_quantity": "allocated",
        "audit": "verified",
        "best_naive": "climatology",
        "memory_source": "a card",
        "capacity_mib": "3646",
    }
    return RunRow(f"{policy}{seed}", "name", "FINISHED", 0, {"policy": policy, "seed": str(seed)}, tags, metrics)


RUNS = [run(policy, seed) for policy in ("clear_cache_every_batch", "keep") for seed in range(2)]


@pytest.mark.parametrize(
    ("width", "shown"), [(100, ["audit", "loss"]), (145, ["skill", "seconds"]), (TABLE_WIDTH, ["q-risk", "claimed", "less that of keep"])]
)
def test_a_narrow_terminal_gets_fewer_columns_and_every_one_whole(width: int, shown: list[str]) -> None:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(comparison_table("s", group_runs(RUNS), width))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    for word in ("1,234 / 2,906 (80%)", "0.5500 ± 0.0707", "verified", "clear_cache_every_batch", *shown):
        assert word in text, word
    assert ("P10 / P50 / P90" in text) == (width == TABLE_WIDTH)
