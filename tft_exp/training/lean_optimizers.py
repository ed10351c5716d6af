"""Optimizers that keep less state than AdamW's 8 bytes a parameter, written here because no library has them in this form.

Both keep all they know by parameter, so that any part of the parameters can step alone (memory.policies.step_of).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ByParameter(Optimizer):
    """Steps one parameter after another, each by `_step_one`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("a closure is not supported")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, parameter.grad, group)
        return None

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class BFloat16AdamW(ByParameter):
    """AdamW (Loshchilov and Hutter 2019) whose moments are bfloat16: 4 bytes a parameter.

    Moments are float32 while a parameter steps, and rounded stochastically when they are kept (Zamirai et al. 2020): with
    beta2 = 0.999 a step changes them by less than bfloat16 resolves, and rounding to nearest would never let them move. The
    random bits are a function of parameter and step, so that a resumed run draws the same ones.
    """

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        (beta1, beta2), rate, state = group["betas"], group["lr"], self.state[parameter]
        if not state:
            state.update(number=len(self.state), step=0)
            state.update({name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in ("exp_avg", "exp_avg_sq")})
        state["step"] += 1
        mean = state["exp_avg"].float().lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        noise = torch.Generator(parameter.device).manual_seed((state["step"] << 20) + state["number"])
        for name, moment in (("exp_avg", mean), ("exp_avg_sq", square)):
            state[name].copy_(round_stochastically(moment, noise))
        scale = square.div_(1 - beta2 ** state["step"]).sqrt_().add_(group["eps"])
        parameter.mul_(1 - rate * group["weight_decay"]).addcdiv_(mean, scale, value=-rate / (1 - beta1 ** state["step"]))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which casts all state to the parameters' type: here it goes back to bfloat16, which loses nothing."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state.update({name: state[name].bfloat16() for name in ("exp_avg", "exp_avg_sq")})


def round_stochastically(value: Tensor, noise: torch.Generator) -> Tensor:
    """float32 to bfloat16, up or down with the probability that makes the mean exact."""
    below = torch.randint(0, 1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=noise)
    # A bfloat16 is the upper half of a float32: the sum carries into it as often as the lower half is large.
    return below.add_(value.view(torch.int32)).bitwise_and_(-(1 << 16)).view(torch.float32).bfloat16()


class Muon(ByParameter):
    """Muon (Jordan et al. 2024): momentum, orthogonalised, for groups with `orthogonal=True`; AdamW for the others.

    4 bytes a parameter for matrices. torch.optim.Muon takes two-dimensional parameters alone; here any leading dimensions
    are separate matrices, as a TFT's per-variable weights are. The update is scaled to the size of AdamW's (Liu et al. 2025),
    so that one learning rate serves both groups.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay, "orthogonal": False}
        )

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        update = self._orthogonal if group["orthogonal"] else self._adam
        # The update is made before the parameter decays, as in AdamW.
        change = update(self.state[parameter], gradient, group)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-group["lr"])

    def _orthogonal(self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        state["momentum"].lerp_(gradient, 1 - group["momentum"])
        nesterov = gradient.lerp(state["momentum"], group["momentum"])
        return orthogonalised(nesterov).mul_(0.2 * math.sqrt(max(gradient.shape[-2:])))

    def _adam(self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(gradient), exp_avg_sq=torch.zeros_like(gradient))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        change: Tensor = state["exp_avg"] / scale.mul_(1 - beta1 ** state["step"])
        return change


def orthogonalised(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix to each of [..., rows, columns], roughly: five Newton-Schulz steps with Jordan's
    coefficients, which bring singular values to between about 0.7 and 1.2."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result.to(matrices.dtype)
