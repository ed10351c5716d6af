"""Optimizer-memory policies: what becomes of the optimizer's state while validation runs.

A policy is a context around validation that yields the device on which validation shall run. Where validation raises,
nothing is brought back: the run is over, and bringing state back onto a full device would hide the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
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


def move_state(optimizer: Optimizer, source: torch.device, target: torch.device) -> list[tuple[torch.Tensor, str]]:
    """Move the state's tensors that lie on `source` to `target`, values unchanged, and tell which were moved.

    Host copies of a CUDA card's tensors are pinned. The old tensors are let go one by one, so at no time do two copies
    of the whole state exist on one device. Tensors that lie elsewhere stay: torch.optim keeps step counts on the CPU
    unless the optimizer is fused or capturable.
    """
    entries = [
        (parameter, key)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value.device == source
    ]
    move_entries(optimizer, entries, target)
    return entries


def move_entries(optimizer: Optimizer, entries: list[tuple[torch.Tensor, str]], target: torch.device) -> None:
    """Move the named tensors of the optimizer's state to `target`."""
    for parameter, key in entries:
        value = optimizer.state[parameter][key]
        pinned = target.type == "cpu" and value.device.type == "cuda"
        moved = torch.empty_like(value, device=target, pin_memory=pinned)
        # Safe without waiting: both allocators reuse a block only behind the copy that still reads it.
        moved.copy_(value, non_blocking=pinned or value.is_pinned())
        optimizer.state[parameter][key] = moved


@contextmanager
def keep(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[torch.device]:
    """Leave everything where it is."""
    yield memory.device


@contextmanager
def clear_cache(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[torch.device]:
    """Give the allocator's unused memory back."""
    memory.clear_cache()
    yield memory.device


@contextmanager
def recreate(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[torch.device]:
    """Drop the optimizer with its state, and build a new one, without state, after validation."""
    owner.drop()
    memory.clear_cache()
    yield memory.device
    owner.rebuild()


@contextmanager
def offload(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[torch.device]:
    """Keep the state in host memory during validation."""
    moved = move_state(owner.current, memory.device, torch.device("cpu"))
    # The allocator must see the copies done before it can give their blocks back.
    memory.synchronize()
    memory.clear_cache()
    yield memory.device
    move_entries(owner.current, moved, memory.device)


@contextmanager
def cpu_validation(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[torch.device]:
    """Validate on the CPU: the parameters leave the device, the optimizer's state stays."""
    model.to("cpu")
    memory.clear_cache()
    yield torch.device("cpu")
    model.to(memory.device)


@contextmanager
def stash(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[torch.device]:
    """The negative control: the optimizer goes to a local variable, which frees nothing."""
    dropped = owner.optimizer
    owner.drop()
    memory.clear_cache()
    yield memory.device
    owner.optimizer = dropped


Policy = Callable[[OptimizerOwner, nn.Module, DeviceMemory], AbstractContextManager[torch.device]]

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
