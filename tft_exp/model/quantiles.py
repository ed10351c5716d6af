"""Quantile forecasts: a head whose outputs cannot cross, the quantile loss, and q-risk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class QuantileHead(nn.Module):
    """Hidden state to rising quantiles: the one nearest the median, and softplus steps outward from it.

    `quantiles` rise. The paper's head is one linear map per quantile (section 4.5), which lets quantiles cross.
    """

    def __init__(self, hidden_size: int, quantiles: Sequence[float]) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, len(quantiles))
        # Rounded, so that .25 and .75 or .4 and .6 tie; of two as near, the upper.
        self.centre = min(range(len(quantiles)), key=lambda i: (round(abs(quantiles[i] - 0.5), 9), -i))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [..., quantiles], never falling along the last dimension."""
        raw = self.linear(hidden)
        # Steps between close quantiles are small: half precision would lose them.
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        below, centre, above = raw[..., : self.centre], raw[..., self.centre : self.centre + 1], raw[..., self.centre + 1 :]
        lower = centre - F.softplus(below).flip(-1).cumsum(-1).flip(-1)
        upper = centre + F.softplus(above).cumsum(-1)
        return torch.cat([lower, centre, upper], dim=-1)


def pinball(forecast: Tensor, target: Tensor, quantiles: Tensor) -> Tensor:
    """Pinball loss of each forecast, [..., quantiles] (Lim et al. 2021, eq. 25). `target` is [...]; float32 at least."""
    # Half precision would round a small error of a large forecast away before it is weighed.
    error = target[..., None] - forecast.to(torch.promote_types(forecast.dtype, torch.float32))
    return torch.maximum(quantiles * error, (quantiles - 1.0) * error)


def quantile_loss(forecast: Tensor, target: Tensor, quantiles: Tensor) -> Tensor:
    """Mean pinball loss over windows, steps and quantiles, a scalar.

    The paper's eq. 24 sums over quantiles; the mean differs by the constant 1/Q and stays comparable between sets.
    """
    return pinball(forecast, target, quantiles).mean()


class QuantileRisk:
    """q-risk, the normalised quantile loss (Lim et al. 2021, eq. 26), gathered over batches without waiting for the device."""

    def __init__(self, quantiles: Tensor) -> None:
        # MPS has no float64.
        self._dtype = torch.float32 if quantiles.device.type == "mps" else torch.float64
        self._quantiles = quantiles.to(self._dtype)
        self._loss = torch.zeros_like(self._quantiles)
        self._scale = torch.zeros((), dtype=self._dtype, device=quantiles.device)

    @torch.no_grad()  # a risk that kept its batches' graphs would keep their activations
    def update(self, forecast: Tensor, target: Tensor) -> None:
        """`forecast` [..., quantiles] and `target` [...] in the target's own unit."""
        target = target.to(self._dtype)
        self._loss += pinball(forecast.to(self._dtype), target, self._quantiles).flatten(0, -2).sum(0)
        self._scale += target.abs().sum()

    def compute(self) -> dict[float, float]:
        """q-risk by quantile; nan where every target was 0."""
        risk = torch.where(self._scale > 0, 2.0 * self._loss / self._scale, torch.nan)
        return {round(quantile, 6): value for quantile, value in zip(self._quantiles.tolist(), risk.tolist(), strict=True)}
