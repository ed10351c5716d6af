"""GaLore of the extra pytorch-optimizer, fitted to a TFT. Imported where it is asked for."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_optimizer import GaLore
from torch import Tensor


class StackedGaLore(GaLore):  # type: ignore[misc]
    """GaLore, to which a per-variable weight [variables, in, out] is one matrix [variables * in, out].

    It projects two-dimensional parameters only, and would silently keep AdamW's full state for the others, which are most of
    a TFT. The matrices are views that live for one step; state stays under the parameters themselves.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [self._lend(p) if "rank" in group else p for p in group["params"]]
        try:
            return super().step(closure)
        finally:
            for group, own in zip(self.param_groups, parameters, strict=True):
                for view, parameter in zip(group["params"], own, strict=True):
                    if view is not parameter and view in self.state:
                        self.state[parameter] = self.state.pop(view)
                group["params"] = own

    def _lend(self, parameter: Tensor) -> Tensor:
        if parameter.grad is None or parameter.dim() < 2:
            return parameter
        view = parameter.detach().flatten(0, -2)
        view.grad = parameter.grad.flatten(0, -2)
        if parameter in self.state:
            self.state[view] = self.state.pop(parameter)
        return view
