"""A virtual card: what fits, what does not, and what each policy leaves on it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from tests.memory.stepped import MIB, PARAMETERS_MIB, SIZE, STATE_MIB, Stepped
from tft_exp.memory.devices import is_out_of_memory
from tft_exp.memory.policies import POLICIES
from tft_exp.memory.virtual import VirtualMemory


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


# What each policy takes off the card during validation, MiB; the blocks' rounding adds less than 0.01.
FREED = {"recreate": STATE_MIB, "offload": STATE_MIB, "cpu_validation": PARAMETERS_MIB}
HOST = {"offload": STATE_MIB, "cpu_validation": PARAMETERS_MIB, "offload_always": STATE_MIB}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_each_policy_frees_and_what_it_costs_the_host(name: str) -> None:
    memory, policy = VirtualMemory(4096, 450), POLICIES[name]
    with memory.attach():
        stepped = Stepped(memory, policy=policy)
        bits = stepped.bits()
        gc.collect()
        before = memory.now()
        with policy.around_validation(stepped.owner, stepped.model, memory) as move:
            gc.collect()
            inside = memory.now()
            assert before.allocated_mib - inside.allocated_mib == pytest.approx(FREED.get(name, 0.0), abs=0.01)
            assert inside.host_mib == pytest.approx(HOST.get(name, 0.0), abs=0.01)
            state_mib = 0.0 if name in ("recreate", "offload", "offload_always") else STATE_MIB
            assert (inside.makeup or {})["optimizer state"] == pytest.approx(state_mib, abs=0.01)
            assert memory.holds(stepped.validate(move)) == (name != "cpu_validation")
        gc.collect()
        if name != "recreate":
            assert all(torch.equal(one, other) for one, other in zip(bits, stepped.bits(), strict=True))
            assert memory.now().host_mib == pytest.approx(HOST[name] if name == "offload_always" else 0.0, abs=0.01)
        stepped.step()
        assert all(memory.holds(parameter) for parameter in stepped.model.parameters())


def test_a_peak_is_made_up_of_what_was_there_at_that_moment() -> None:
    """Kinds become known only after the peak: a gradient when the step takes it, the state when the step has made it."""
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        model = nn.Linear(SIZE, SIZE)
        memory.observe(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        memory.reset_peak()
        model(torch.ones(4, SIZE)).sum().backward()
        optimizer.step()
        # Fused AdamW's peak is at its end: parameters, gradients and the whole new state, and the step's own counts.
        made = memory.peak().makeup or {}
        expected = {
            "parameters": PARAMETERS_MIB,
            "gradients": PARAMETERS_MIB,
            "optimizer state": STATE_MIB,
            "kernel workspace": 0.0,
            "other": 0.0,
        }
        assert made == pytest.approx(expected, abs=0.02)
        assert sum(made.values()) == pytest.approx(memory.peak().allocated_mib, abs=0.02)
        optimizer.zero_grad()
        memory.reset_peak()
        extra = torch.ones(MIB)
        made = memory.peak().makeup or {}
        assert made == pytest.approx({**expected, "gradients": 0.0, "other": 4.0}, abs=0.02)
        assert memory.peak().makeup_text == "other 4 MiB, optimizer state 2 MiB, parameters 1 MiB"
        del extra
        assert (memory.peak().makeup or {})["other"] == pytest.approx(4.0, abs=0.02), "a peak stays when its tensors go"


def test_out_of_memory_leaves_the_figures_of_its_moment() -> None:
    memory = VirtualMemory(500, 400)
    with memory.attach():
        held = torch.ones(60 * MIB // 4)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(50 * MIB // 4)
        full = memory.shortage
        assert full is not None
        assert (full.requested, full.allocated, full.reserved) == (50 * MIB, 60 * MIB, 60 * MIB)
        made = {"parameters": 0, "gradients": 0, "optimizer state": 0, "kernel workspace": 0, "other": 60}
        assert memory.now().makeup == pytest.approx(made)
        del held
