"""Optimizers as configured, and the learning-rate schedule."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tft_exp.config import OptimizerConfig, OptimizerKind, Schedule
from tft_exp.training.optimizers import build_optimizer, learning_rate_at


def rates(schedule: Schedule, warmup: int, total: int) -> list[float]:
    return [learning_rate_at(step, base=1.0, schedule=schedule, warmup_steps=warmup, total_steps=total) for step in range(total)]


def test_constant_is_constant_after_a_linear_warmup() -> None:
    assert rates(Schedule.constant, 3, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_zero_just_after_the_last_step() -> None:
    assert rates(Schedule.linear, 0, 4) == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("warmup", [0, 5])
def test_cosine_is_torchs_own(warmup: int) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates(Schedule.cosine, warmup, 20 + warmup)[warmup:] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        (
            OptimizerConfig(kind=OptimizerKind.adamw, learning_rate=0.5, weight_decay=0.1, beta1=0.8, beta2=0.9, eps=1e-3, fused=True),
            torch.optim.AdamW,
            {"lr": 0.5, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "fused": True},
        ),
        (OptimizerConfig(kind=OptimizerKind.adamw), torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8}),
        (OptimizerConfig(kind=OptimizerKind.sgd, momentum=0.7, weight_decay=0.2), torch.optim.SGD, {"momentum": 0.7, "weight_decay": 0.2}),
        (OptimizerConfig(kind=OptimizerKind.adafactor, learning_rate=0.3), torch.optim.Adafactor, {"lr": 0.3}),
    ],
)
def test_constants_reach_the_optimizer(config: OptimizerConfig, kind: type, expected: dict[str, object]) -> None:
    optimizer = build_optimizer(config, nn.Linear(3, 1))
    assert type(optimizer) is kind
    assert {key: optimizer.param_groups[0][key] for key in expected} == expected
    assert len(optimizer.state) == 0
