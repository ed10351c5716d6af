"""A virtual card: what fits, what does not, and what each policy leaves on it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from tft_exp.memory.audit import StateWitness
from tft_exp.memory.devices import is_out_of_memory
from tft_exp.memory.policies import POLICIES, OptimizerOwner
from tft_exp.memory.virtual import VirtualMemory

MIB = 2**20


def test_figures_of_a_card() -> None:
    memory = VirtualMemory(1024, 400)
    with memory.attach():
        held = torch.ones(30 * MIB // 4)
        now = memory.now()
        assert (now.allocated_mib, now.reserved_mib, now.driver_mib, now.host_mib) == (30, 30, 430, 0)
        host = memory.fetch(held)
        assert memory.now().host_mib == 30
        assert memory.holds(held)
        assert not memory.holds(host)
        memory.reset_peak()
        del held
        gc.collect()
        assert (memory.now().allocated_mib, memory.now().reserved_mib, memory.peak().allocated_mib) == (0, 30, 30)
        memory.clear_cache()
        assert memory.now().reserved_mib == 0


def test_what_does_not_fit_is_torchs_own_error_and_can_be_recovered_from() -> None:
    memory = VirtualMemory(1024, 400)
    with memory.attach():
        held = torch.ones(500 * MIB // 4)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            held + 1
        assert is_out_of_memory(caught.value)
        words = str(caught.value)
        assert "CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of 1024.00 MiB" in words
        assert "124.00 MiB is free" in words
        assert "this process has 900.00 MiB memory in use" in words
        assert "500.00 MiB is allocated by PyTorch" in words
        held.add_(1)
        # The exception's frames hold the operation's inputs, as they do on a real card.
        del held, caught
        gc.collect()
        assert torch.ones(600 * MIB // 4).sum() == 600 * MIB // 4


def test_an_out_of_memory_within_the_backward_pass() -> None:
    memory = VirtualMemory(500, 400)
    with memory.attach():
        weight = torch.ones(40 * MIB // 4, requires_grad=True)
        loss = weight.sum()
        loss.backward()
        with pytest.raises(torch.OutOfMemoryError):
            (weight * 2).sum().backward()


class Stepped:
    def __init__(self, memory: VirtualMemory) -> None:
        torch.manual_seed(0)
        self.memory = memory
        self.model = nn.Linear(512, 512)
        self.owner = OptimizerOwner(lambda: torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True))
        self.step()

    def step(self) -> None:
        self.model(torch.ones(4, 512)).sum().backward()
        self.owner.current.step()
        self.owner.current.zero_grad()

    def bits(self) -> list[Tensor]:
        state = self.owner.current.state.values()
        return [value.clone() for entry in state for value in entry.values()] + [p.detach().clone() for p in self.model.parameters()]


PARAMETERS = (512 * 512 + 512) * 4 / MIB
STATE = 2 * PARAMETERS
# What each policy takes off the card during validation, MiB; the blocks' rounding adds less than 0.01.
FREED = {"keep": 0.0, "clear_cache": 0.0, "stash": 0.0, "recreate": STATE, "offload": STATE, "cpu_validation": PARAMETERS}
HOST = {"offload": STATE, "cpu_validation": PARAMETERS}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_each_policy_frees_and_what_it_costs_the_host(name: str) -> None:
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        stepped = Stepped(memory)
        bits = stepped.bits()
        gc.collect()
        before = memory.now()
        witness = StateWitness(stepped.owner.current, memory)
        with POLICIES[name](stepped.owner, stepped.model, memory) as move:
            gc.collect()
            inside = memory.now()
            assert before.allocated_mib - inside.allocated_mib == pytest.approx(FREED[name], abs=0.01)
            assert inside.host_mib == pytest.approx(HOST.get(name, 0.0), abs=0.01)
            assert (witness.alive_mib() == 0) == (name in ("recreate", "offload"))
            batch = torch.ones(4, 512)
            with torch.no_grad():
                result = stepped.model(move(batch))
            assert memory.holds(result) == (name != "cpu_validation")
        gc.collect()
        if name != "recreate":
            assert all(torch.equal(one, other) for one, other in zip(bits, stepped.bits(), strict=True))
            assert all(memory.holds(value) for entry in stepped.owner.current.state.values() for value in entry.values())
            assert memory.now().host_mib == pytest.approx(0.0, abs=0.01)
        stepped.step()
        assert all(memory.holds(parameter) for parameter in stepped.model.parameters())
