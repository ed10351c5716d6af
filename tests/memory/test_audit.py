"""The witness of an optimizer's state: it sees what is held, by whatever means, and no more."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tft_exp.memory.audit import StateWitness
from tft_exp.memory.devices import ProcessMemory

MEMORY = ProcessMemory()


def stepped() -> tuple[nn.Module, Optimizer]:
    model = nn.Linear(128, 128)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 128)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_state_of_adamw_is_eight_bytes_a_parameter() -> None:
    model, optimizer = stepped()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    steps = 2 * 4  # one float32 count a tensor
    assert StateWitness(optimizer, MEMORY).total_mib * 2**20 == parameters * 8 + steps


def test_a_storage_with_two_views_counts_once() -> None:
    _, optimizer = stepped()
    before = StateWitness(optimizer, MEMORY).total_mib
    first = next(iter(optimizer.state.values()))
    first["view"] = first["exp_avg"].view(-1)
    assert StateWitness(optimizer, MEMORY).total_mib == before


def test_a_dropped_optimizer_is_gone() -> None:
    _, optimizer = stepped()
    witness = StateWitness(optimizer, MEMORY)
    assert witness.alive_mib() == witness.total_mib > 0
    del optimizer
    assert witness.alive_mib() == 0


@pytest.mark.parametrize(
    "hold",
    [
        lambda optimizer: optimizer,
        lambda optimizer: optimizer.state_dict(),
        lambda optimizer: optimizer.step,
        lambda optimizer: [state["exp_avg"].detach() for state in optimizer.state.values()],
        lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer),
    ],
    ids=["variable", "state_dict", "bound method", "detached tensors", "scheduler"],
)
def test_whoever_holds_the_memory_is_seen(hold: Callable[[Optimizer], object]) -> None:
    _, optimizer = stepped()
    witness = StateWitness(optimizer, MEMORY)
    held = hold(optimizer)
    del optimizer
    assert witness.alive_mib() >= 0.49 * witness.total_mib
    del held
    assert witness.alive_mib() == 0


def test_a_copy_is_not_the_original() -> None:
    _, optimizer = stepped()
    witness = StateWitness(optimizer, MEMORY)
    copied = copy.deepcopy(optimizer.state_dict())
    del optimizer
    assert len(copied["state"]) == 2
    assert witness.alive_mib() == 0
