"""The quantile loss by hand, and q-risk against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tft_exp.model.quantiles import QuantileRisk, quantile_loss


def test_loss_by_hand() -> None:
    forecast = torch.tensor([[[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]]])
    target = torch.tensor([[2.5], [-1.0]])
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    # Under the target by 1.5 and .5, over it by .5; then over it by 1 each.
    expected = (0.1 * 1.5 + 0.5 * 0.5 + 0.1 * 0.5 + 0.9 + 0.5 + 0.1) / 6
    assert quantile_loss(forecast, target, quantiles).item() == pytest.approx(expected)


def test_the_best_constant_is_the_quantile() -> None:
    sample = torch.randn(4001, generator=torch.Generator().manual_seed(0))
    for q in (0.1, 0.5, 0.9):
        best = torch.quantile(sample, q)
        losses = [quantile_loss((best + shift).expand(4001, 1), sample, torch.tensor([q])).item() for shift in (-0.1, 0.0, 0.1)]
        assert min(losses) == losses[1]


def test_risk_over_batches_is_that_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    forecast, target = rng.normal(size=(10, 4, 3)), rng.normal(size=(10, 4)) + 1e4
    levels = [0.1, 0.5, 0.9]
    risk = QuantileRisk(torch.tensor(levels))
    for part in (slice(0, 3), slice(3, 10)):
        risk.update(torch.tensor(forecast[part]), torch.tensor(target[part]))
    error = target[..., None] - forecast
    pinball = np.maximum(np.array(levels) * error, (np.array(levels) - 1) * error)
    expected = 2 * pinball.sum((0, 1)) / np.abs(target).sum()
    assert risk.compute() == pytest.approx(dict(zip(levels, expected, strict=True)), rel=1e-6)


def test_risk_of_targets_that_are_all_zero_is_no_number() -> None:
    risk = QuantileRisk(torch.tensor([0.5]))
    risk.update(torch.ones(2, 3, 1), torch.zeros(2, 3))
    assert math.isnan(risk.compute()[0.5])
