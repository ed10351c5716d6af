"""Optimizer-memory policies: what becomes of the optimizer's state while validation runs.

A policy is a context around validation that yields what brings a batch to where validation shall run. Where validation raises,
nothing is brought back: the run is over, and bringing state back onto a full device would hide the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tft_exp.memory.devices import DeviceMemory


class OptimizerOwner:
    """The one owner of a run's optimizer. Dropping it here frees its state, because nobody else may hold it.

    A learning-rate scheduler would hold it; so the schedule is a function of the step (training.optimizers), and
    `build` makes a new optimizer whenever one is wanted.
    """

    def __init__(self, build: Callable[[], Optimizer]) -> None:
        self._build = build
        self.optimizer: Optimizer | None = build()

    @property
    def current(self) -> Optimizer:
        if self.optimizer is None:
            raise RuntimeError("the optimizer was dropped and not built anew")
        return self.optimizer

    def drop(self) -> None:
        self.optimizer = None

    def rebuild(self) -> None:
        self.optimizer = self._build()


Move = Callable[[Tensor], Tensor]  # brings a tensor to where it is wanted


@contextmanager
def keep(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """Leave everything where it is."""
    yield memory.put


@contextmanager
def clear_cache(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """Give the allocator's unused memory back."""
    memory.clear_cache()
    yield memory.put


@contextmanager
def recreate(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """Drop the optimizer with its state, and build a new one, without state, after validation."""
    owner.drop()
    memory.clear_cache()
    yield memory.put
    owner.rebuild()


@contextmanager
def offload(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """Keep the state in host memory during validation, and bring back what was moved and nothing else: torch.optim keeps
    step counts on the CPU unless the optimizer is fused or capturable."""
    state = owner.current.state
    held = [(parameter, key, value) for parameter in state for key, value in state[parameter].items()]
    moved = [(parameter, key) for parameter, key, value in held if isinstance(value, Tensor) and memory.holds(value)]
    del held
    # One by one, so that at no time two copies of the whole state lie in one place.
    for parameter, key in moved:
        state[parameter][key] = memory.fetch(state[parameter][key])
    # The allocator must see the copies done before it can give their blocks back.
    memory.synchronize()
    memory.clear_cache()
    yield memory.put
    for parameter, key in moved:
        state[parameter][key] = memory.put(state[parameter][key])


@contextmanager
def cpu_validation(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """Validate on the CPU: the parameters leave the device, the optimizer's state stays."""
    model._apply(memory.fetch)
    memory.synchronize()
    memory.clear_cache()
    yield memory.fetch
    model._apply(memory.put)


@contextmanager
def stash(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """The negative control: the optimizer goes to a local variable, which frees nothing."""
    dropped = owner.optimizer
    owner.drop()
    memory.clear_cache()
    yield memory.put
    owner.optimizer = dropped


Policy = Callable[[OptimizerOwner, nn.Module, DeviceMemory], AbstractContextManager[Move]]

POLICIES: dict[str, Policy] = {
    "keep": keep,
    "clear_cache": clear_cache,
    "recreate": recreate,
    "offload": offload,
    "cpu_validation": cpu_validation,
    "stash": stash,
}


def idle_on(policy: str, device: torch.device) -> str | None:
    """Why a policy can free nothing on this kind of device, or None where it can."""
    if device.type != "cpu":
        return None
    if policy in ("offload", "cpu_validation"):
        return f"policy={policy} frees nothing on device=cpu: host memory is the device's memory"
    if policy == "clear_cache":
        return "policy=clear_cache frees nothing on device=cpu: there the process gives its free memory back before every validation"
    return None
