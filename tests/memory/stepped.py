"""A small model with an optimizer that has taken a step, so that it has a state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tft_exp.memory.devices import DeviceMemory
from tft_exp.memory.policies import OptimizerOwner, Policy
from tft_exp.memory.tensors import state_tensors

SIZE = 512
MIB = 2**20
PARAMETERS_MIB = (SIZE * SIZE + SIZE) * 4 / MIB
STATE_MIB = 2 * PARAMETERS_MIB


def fused_adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


class Stepped:
    """Call it within `memory.attach()`."""

    def __init__(self, memory: DeviceMemory, make: Callable[[nn.Module], Optimizer] = fused_adamw, policy: Policy | None = None) -> None:
        torch.manual_seed(0)
        self.memory, self.policy = memory, policy
        self.model = nn.Linear(SIZE, SIZE)._apply(memory.put)
        memory.observe(self.model)
        self.owner = OptimizerOwner(lambda: make(self.model))
        self.step()

    def step(self) -> None:
        batch = self.memory.put(torch.linspace(-1, 1, 4 * SIZE).view(4, SIZE))
        self.model(batch).square().sum().backward()
        if self.policy is None:
            self.owner.current.step()
        else:
            self.policy.step(self.owner.current, self.memory, list(self.model.parameters()))
        self.owner.current.zero_grad()

    def validate(self, move: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            return self.model(move(torch.ones(4, SIZE)))

    def bits(self) -> list[Tensor]:
        """Copies of all state and parameters, outside of any ledger."""
        with torch.utils._python_dispatch._disable_current_modes():
            return [tensor.detach().clone().cpu() for tensor in (*state_tensors(self.owner.current), *self.model.parameters())]
