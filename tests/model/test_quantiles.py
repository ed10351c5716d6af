"""The quantile loss by hand, and q-risk against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tft_exp.model.quantiles import QuantileHead, QuantileRisk, quantile_loss


def test_loss_by_hand() -> None:
    forecast = torch.tensor([[[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]]])
    target = torch.tensor([[2.5], [-1.0]])
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    # Under the target by 1.5 and .5, over it by .5; then over it by 1 each.
    expected = (0.1 * 1.5 + 0.5 * 0.5 + 0.1 * 0.5 + 0.9 + 0.5 + 0.1) / 6
    assert quantile_loss(forecast, target, quantiles).item() == pytest.approx(expected)


def test_quantiles_are_the_linear_maps_in_rising_order() -> None:
    torch.manual_seed(0)
    head, hidden = QuantileHead(8, [0.1, 0.5, 0.9]), 100 * torch.randn(32, 8)
    forecast, raw = head(hidden), head.linear(hidden)
    assert torch.all(forecast.diff(dim=-1) >= 0)
    assert not torch.equal(forecast, raw)
    assert [sorted(row) for row in raw.tolist()] == forecast.tolist()


def test_sorting_quantiles_never_makes_the_loss_larger() -> None:
    generator = torch.Generator().manual_seed(0)
    raw, target = torch.randn(500, 5, generator=generator), torch.randn(500, generator=generator)
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    for forecast, value in zip(raw.split(1), target.split(1), strict=True):
        assert quantile_loss(forecast.sort().values, value, levels) <= quantile_loss(forecast, value, levels) + 1e-6


def test_loss_of_half_precision_is_weighed_in_float32() -> None:
    forecast, target = torch.tensor([[257.0]]), torch.tensor([256.0, 1.5])
    # 257 lies between two bfloat16s; it rounds to 256 and the other error, 254.5, would round to 254.
    loss = quantile_loss(forecast.bfloat16().expand(2, 1), target.bfloat16(), torch.tensor([0.5]))
    assert loss.dtype == torch.float32
    assert loss.item() == (0.0 + 0.5 * 254.5) / 2


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


def test_risk_keeps_no_graph_of_what_it_has_seen() -> None:
    forecast = torch.ones(2, 3, 1, requires_grad=True)
    risk = QuantileRisk(torch.tensor([0.5]))
    risk.update(forecast * 2, torch.ones(2, 3))
    assert not risk._loss.requires_grad
    assert risk.compute()[0.5] == 1.0


def test_risk_of_targets_that_are_all_zero_is_no_number() -> None:
    risk = QuantileRisk(torch.tensor([0.5]))
    risk.update(torch.ones(2, 3, 1), torch.zeros(2, 3))
    assert math.isnan(risk.compute()[0.5])
