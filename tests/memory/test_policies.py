"""What each policy does to the optimizer's state, seen on the storages themselves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tft_exp.memory.devices import ProcessMemory
from tft_exp.memory.policies import POLICIES, OptimizerOwner, idle_on

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]),
]


class Stepped:
    """A model with an optimizer that has taken one step, so that it has a state."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(256, 256).to(device)
        self.owner = OptimizerOwner(lambda: torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True))
        self.step()

    def step(self) -> None:
        self.model(torch.ones(4, 256, device=next(self.model.parameters()).device)).sum().backward()
        self.owner.current.step()
        self.owner.current.zero_grad()

    def state(self) -> Iterator[Tensor]:
        for state in self.owner.current.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def witnesses(stepped: Stepped) -> list[weakref.ref[Tensor]]:
    return [weakref.ref(tensor) for tensor in stepped.state()]


def alive(references: list[weakref.ref[Tensor]]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["recreate"])
def test_freeing_policies_let_every_state_tensor_of_the_device_go(name: str, device: str) -> None:
    stepped = Stepped(device)
    references = witnesses(stepped)
    memory = memory_of(stepped)
    with POLICIES[name](stepped.owner, stepped.model, memory):
        assert alive(references) == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["keep", "clear_cache", "cpu_validation", "stash"])
def test_other_policies_free_no_state(name: str, device: str) -> None:
    stepped = Stepped(device)
    references = witnesses(stepped)
    with POLICIES[name](stepped.owner, stepped.model, memory_of(stepped)):
        assert alive(references) == len(references)


def memory_of(stepped: Stepped):  # type: ignore[no-untyped-def]
    from tft_exp.memory.devices import open_memory

    return open_memory(next(stepped.model.parameters()).device)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_training_goes_on_after_every_policy(name: str) -> None:
    stepped = Stepped("cpu")
    with POLICIES[name](stepped.owner, stepped.model, ProcessMemory()) as move:
        batch = torch.ones(2)
        assert torch.equal(move(batch), batch)
    before = stepped.model.weight.detach().clone()
    stepped.step()
    assert not torch.equal(before, stepped.model.weight)


@pytest.mark.parametrize("name", ["keep", "clear_cache", "offload", "cpu_validation", "stash"])
def test_policies_that_keep_the_state_bring_the_same_bits_back(name: str) -> None:
    stepped = Stepped("cpu")
    before = [tensor.clone() for tensor in stepped.state()]
    with POLICIES[name](stepped.owner, stepped.model, ProcessMemory()):
        pass
    after = list(stepped.state())
    assert len(before) == len(after) == 6
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_recreate_begins_without_state() -> None:
    stepped = Stepped("cpu")
    with POLICIES["recreate"](stepped.owner, stepped.model, ProcessMemory()), pytest.raises(RuntimeError, match="dropped"):
        _ = stepped.owner.current
    assert list(stepped.state()) == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_offload_pins_the_host_copy_and_frees_the_card() -> None:
    stepped = Stepped("cuda")
    before = torch.cuda.memory_allocated()
    bits = [tensor.clone().cpu() for tensor in stepped.state()]
    state_bytes = sum(tensor.nbytes for tensor in stepped.state())
    with POLICIES["offload"](stepped.owner, stepped.model, memory_of(stepped)):
        assert all(tensor.is_pinned() for tensor in stepped.state())
        assert before - torch.cuda.memory_allocated() >= state_bytes
    assert all(torch.equal(one, other.cpu()) for one, other in zip(bits, stepped.state(), strict=True))


def test_a_policy_that_cannot_free_anything_is_said_to_be_idle() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert "offload" in (idle_on("offload", cpu) or "")
    assert "cpu_validation" in (idle_on("cpu_validation", cpu) or "")
    assert idle_on("offload", cuda) is None
    assert idle_on("clear_cache", cpu) is not None
    assert idle_on("recreate", cpu) is None
