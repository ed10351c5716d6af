"""Quantile forecasts: a head whose outputs cannot cross, the quantile loss, and q-risk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class QuantileHead(nn.Module):
    """Hidden state to quantiles that never cross: one linear map each, as in the paper (section 4.5), and sorted.

    Sorting never makes a quantile loss larger (Chernozhukov et al. 2010, "Quantile and probability curves without crossing").
    Steps from the median outward by softplus, which do not cross either, took longer to learn: a narrow step's gradient is small.
    """

    def __init__(self, hidden_size: int, quantiles: Sequence[float]) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, len(quantiles))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] to [..., quantiles], never falling along the last dimension; float32 at least."""
        raw = self.linear(hidden)
        rising: Tensor = raw.to(torch.promote_types(raw.dtype, torch.float32)).sort(dim=-1).values
        return rising


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
