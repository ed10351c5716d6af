"""What each policy does to training: where the state lies, and that its bits come back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.memory.stepped import Stepped
from tft_exp.memory.devices import ProcessMemory, open_memory
from tft_exp.memory.policies import POLICIES, buckets, idle_on, step_in_backward, step_of
from tft_exp.memory.tensors import state_tensors
from tft_exp.memory.virtual import VirtualMemory


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_training_goes_on_after_every_policy(name: str) -> None:
    memory = ProcessMemory()
    stepped = Stepped(memory, policy=POLICIES[name])
    with POLICIES[name].around_validation(stepped.owner, stepped.model, memory) as move:
        assert torch.isfinite(stepped.validate(move)).all()
    before = stepped.model.weight.detach().clone()
    stepped.step()
    assert not torch.equal(before, stepped.model.weight)


def test_recreate_begins_without_state() -> None:
    memory = ProcessMemory()
    stepped = Stepped(memory)
    with POLICIES["recreate"].around_validation(stepped.owner, stepped.model, memory), pytest.raises(RuntimeError, match="dropped"):
        _ = stepped.owner.current
    assert list(state_tensors(stepped.owner.current)) == []
    assert stepped.owner.builds == 2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_offload_pins_the_host_copy_and_frees_the_card() -> None:
    memory = open_memory(torch.device("cuda", 0))
    stepped = Stepped(memory)
    before = torch.cuda.memory_allocated()
    bits = stepped.bits()
    state_bytes = sum(tensor.nbytes for tensor in state_tensors(stepped.owner.current))
    with POLICIES["offload"].around_validation(stepped.owner, stepped.model, memory):
        assert all(tensor.is_pinned() for tensor in state_tensors(stepped.owner.current))
        assert before - torch.cuda.memory_allocated() >= state_bytes
    assert all(torch.equal(one, other) for one, other in zip(bits, stepped.bits(), strict=True))


def test_offload_always_holds_a_bucket_of_state_on_the_card_and_no_more() -> None:
    memory = VirtualMemory(4096, 450)
    with memory.attach():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))._apply(memory.put)
        memory.observe(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        steps = 0
        for _ in range(2):
            model(memory.put(torch.ones(2, 1024))).sum().backward()
            memory.reset_peak()
            # 4 MiB a matrix: a bucket of 8 MiB holds two of the four.
            for bucket in buckets(list(model.parameters()), 8 * 2**20):
                POLICIES["offload_always"].step(optimizer, memory, bucket)
                steps += 1
            peak, now = memory.peak(), memory.now()
            optimizer.zero_grad()
            assert (now.makeup or {})["optimizer state"] == pytest.approx(0.0, abs=0.01)
            assert now.host_mib == pytest.approx(32.0, abs=0.01)
            assert (peak.makeup or {})["optimizer state"] == pytest.approx(16.0, abs=0.01)
        assert steps == 4


def test_buckets_hold_every_parameter_once_in_order() -> None:
    parameters = [torch.ones(size) for size in (10, 10, 100, 5, 5)]
    found = [[len(parameter) for parameter in bucket] for bucket in buckets(parameters, 20 * 4)]
    assert found == [[10, 10], [100], [5, 5]]


def test_a_step_of_some_parameters_leaves_the_others() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.1}])
    model(torch.ones(1, 3)).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step_of(optimizer, [model[1].weight])
    moved = [not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)]
    assert moved == [False, False, True, False]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]


def test_stepping_in_backward_is_bit_for_bit_stepping_after_it_and_keeps_no_gradient() -> None:
    trained = []
    for in_backward in (False, True):
        torch.manual_seed(0)
        shared = nn.Linear(8, 8)
        model = nn.Sequential(shared, nn.GELU(), shared, nn.Linear(8, 1))  # one layer used twice: its gradient is one sum
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        if in_backward:
            step_in_backward(model, lambda parameters, optimizer=optimizer: step_of(optimizer, parameters))
        for _ in range(3):
            model(torch.ones(2, 8)).square().sum().backward()
            if in_backward:
                assert all(parameter.grad is None for parameter in model.parameters())
            else:
                optimizer.step()
                optimizer.zero_grad()
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*trained, strict=True))


def test_a_policy_that_cannot_free_anything_is_said_to_be_idle() -> None:
    process, card = ProcessMemory(), VirtualMemory(1024, 400)
    for name in ("offload", "offload_always", "cpu_validation", "clear_cache", "clear_cache_every_batch"):
        assert name in (idle_on(name, process) or "")
        assert idle_on(name, card) is None
    assert idle_on("recreate", process) is None


class LateMemory(VirtualMemory):
    """Copies to the host come as late as CUDA's may: with `finish_copies`, or when something is put back."""

    def __init__(self) -> None:
        super().__init__(4096, 450)
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        host = super().fetch(tensor)
        if host is not tensor:
            self._under_way.append((host, host.detach().clone()))
            host.detach().fill_(float("nan"))
        return host

    def finish_copies(self) -> None:
        for host, values in self._under_way:
            host.detach().copy_(values)
        self._under_way.clear()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self.finish_copies()
        return super().put(tensor)


@pytest.mark.parametrize("fused", [True, None])
@pytest.mark.parametrize("name", ["offload", "offload_always", "cpu_validation"])
def test_nothing_is_read_on_the_host_before_it_has_come(name: str, fused: bool | None) -> None:
    bits = []
    for memory, policy in ((VirtualMemory(4096, 450), POLICIES["keep"]), (LateMemory(), POLICIES[name])):
        with memory.attach():
            stepped = Stepped(memory, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused), policy)
            with policy.around_validation(stepped.owner, stepped.model, memory) as move:
                result = stepped.validate(move)
                assert torch.isfinite(result).all()
            stepped.step()
            memory.finish_copies()
            bits.append([result, *stepped.bits()])
    assert all(torch.equal(one, other) for one, other in zip(*bits, strict=True))
