"""The audit: every way in which a dropped optimizer stays alive is caught, and its holder is named."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.memory.stepped import PARAMETERS_MIB, STATE_MIB, Stepped
from tft_exp.memory.audit import Audit, Finding, Verdict, Witness
from tft_exp.memory.devices import DeviceMemory, ProcessMemory, open_memory
from tft_exp.memory.policies import POLICIES
from tft_exp.memory.tensors import state_tensors
from tft_exp.memory.virtual import VirtualMemory

DEVICES = {
    "cpu": ProcessMemory,
    "virtual": lambda: VirtualMemory(4096, 450),
    "cuda": lambda: open_memory(torch.device("cuda", 0)),
}
KINDS = [
    "cpu",
    "virtual",
    pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]),
]


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest) -> Iterator[DeviceMemory]:
    memory: DeviceMemory = DEVICES[request.param]()
    with memory.attach():
        yield memory


class Owner:
    def __init__(self, optimizer: Optimizer) -> None:
        self.old = optimizer


def suspended(optimizer: Optimizer) -> Iterator[None]:
    dropped = optimizer
    del optimizer
    yield
    dropped.step()


def started(optimizer: Optimizer) -> Iterator[None]:
    generator = suspended(optimizer)
    next(generator)
    return generator


def failed(optimizer: Optimizer) -> Exception:
    def work(inner: Optimizer) -> None:
        raise ValueError("in the midst of a step")

    try:
        work(optimizer)
    except ValueError as error:
        return error
    raise AssertionError


def hooked(optimizer: Optimizer) -> list[Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.register_post_accumulate_grad_hook(lambda _: optimizer.step()) for parameter in parameters]


HIDDEN: list[Optimizer] = []


def hidden(optimizer: Optimizer) -> None:
    HIDDEN.append(optimizer)


# Each way of FACTS in which all of a dropped state stays alive, and what must be said of its holder.
HOLDS: dict[str, tuple[Callable[[Optimizer], Any], list[str]]] = {
    "local": (lambda optimizer: optimizer, ["local 'held'", "AdamW.state[parameter]['exp_avg"]),
    "attribute": (Owner, ["local 'held'", "Owner.old", "AdamW.state"]),
    "scheduler": (torch.optim.lr_scheduler.ConstantLR, ["local 'held'", "ConstantLR.optimizer", "AdamW.state"]),
    "state_dict": (lambda optimizer: optimizer.state_dict(), ["local 'held'", "dict['state'][0]['exp_avg"]),
    "list of optimizers": (lambda optimizer: ["other", [optimizer]], ["local 'held'", "list[1][0]", "AdamW.state"]),
    "bound step": (lambda optimizer: optimizer.step, ["bound method step.__self__", "AdamW.state"]),
    "hook": (hooked, ["_post_accumulate_grad_hooks", "closure variable 'optimizer'", "AdamW.state"]),
    "exception": (failed, ["local 'held'", "ValueError.__traceback__", "frame of failed", "AdamW.state"]),
    "generator": (started, ["local 'held'", "suspended generator suspended", "local 'dropped'", "AdamW.state"]),
    "module global": (hidden, ["module tests.memory.test_audit.HIDDEN[0]", "AdamW.state"]),
    "views": (lambda optimizer: [t.detach() for t in state_tensors(optimizer)], ["local 'held'", "list["]),
}


def audited(memory: DeviceMemory, hold: Callable[[Optimizer], Any]) -> tuple[Finding, float]:
    """The finding on a claim of the whole state where `hold` is what became of the optimizer; and its verdict without it."""
    stepped = Stepped(memory)
    audit = Audit(state_tensors(stepped.owner.current), memory)
    held = hold(stepped.owner.current)
    stepped.owner.drop()
    finding = audit.close()
    del held
    return finding, audit.claimed_mib


@pytest.mark.parametrize("way", HOLDS)
def test_every_way_of_holding_on_is_caught_and_the_holder_named(way: str, memory: DeviceMemory) -> None:
    hold, words = HOLDS[way]
    try:
        finding, claimed_mib = audited(memory, hold)
    finally:
        HIDDEN.clear()
    assert finding.verdict is Verdict.nothing_freed
    assert claimed_mib == pytest.approx(STATE_MIB, abs=0.01)
    assert abs(finding.freed_mib) < 0.01
    for word in words:
        assert word in "\n".join(finding.holders)


@pytest.mark.parametrize("way", [lambda o: o.state.clear(), lambda o: None], ids=["state.clear()", "del"])
def test_what_frees_is_verified(way: Callable[[Optimizer], Any], memory: DeviceMemory) -> None:
    finding, claimed_mib = audited(memory, way)
    assert finding.verdict is Verdict.verified
    assert finding.freed_mib == pytest.approx(claimed_mib, rel=0.02)
    assert finding.holders == ()


def patched(optimizer: Optimizer) -> None:
    original = optimizer.step
    optimizer.step = lambda *args: original(*args)  # type: ignore[method-assign]


def hooked_on_itself(optimizer: Optimizer) -> None:
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())


@pytest.mark.parametrize(("way", "words"), [(patched, "closure variable 'original'"), (hooked_on_itself, "closure variable 'optimizer'")])
def test_a_cycle_is_named_although_the_collection_frees_it(way: Callable[[Optimizer], Any], words: str, memory: DeviceMemory) -> None:
    finding, _ = audited(memory, way)
    assert finding.verdict is Verdict.verified
    assert "a reference cycle until it was collected" in finding.holders[0]
    assert words in finding.holders[0]


def test_a_copy_left_on_the_device_is_caught_though_every_original_died(memory: DeviceMemory) -> None:
    finding, _ = audited(memory, lambda optimizer: copy.deepcopy(optimizer.state_dict()))
    assert finding.verdict is Verdict.nothing_freed
    assert "local 'held'" in finding.holders[0]
    assert "dict['state'][0]['exp_avg" in finding.holders[0]
    assert "a copy made on the device" in finding.holders[0]


def test_a_part_is_a_part(memory: DeviceMemory) -> None:
    finding, claimed_mib = audited(memory, lambda optimizer: [state["exp_avg"] for state in optimizer.state.values()])
    assert finding.verdict is Verdict.partial
    assert finding.freed_mib == pytest.approx(claimed_mib / 2, rel=0.02)
    assert "local 'held'" in finding.holders[0]


def test_naming_holders_holds_nothing_itself() -> None:
    memory = ProcessMemory()
    stepped = Stepped(memory)
    witness = Witness(state_tensors(stepped.owner.current), memory)
    audit = Audit(state_tensors(stepped.owner.current), memory)
    local = stepped.owner.current
    stepped.owner.drop()
    assert audit.close().holders
    del local
    assert witness.alive_mib() == 0


CLAIMED = {"recreate": STATE_MIB, "offload": STATE_MIB, "cpu_validation": PARAMETERS_MIB, "stash": STATE_MIB}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_honest_policies_pass_and_stash_is_caught_on_every_kind_of_device(name: str, memory: DeviceMemory) -> None:
    stepped = Stepped(memory)
    policy = POLICIES[name]
    audit = Audit(policy.claim(stepped.owner, stepped.model, memory), memory)
    with policy.around_validation(stepped.owner, stepped.model, memory):
        finding = audit.close()
    claimed_mib = CLAIMED.get(name, 0.0) if memory.has_host or name in ("recreate", "stash") else 0.0
    assert finding.claimed_mib == pytest.approx(claimed_mib, abs=0.01)
    if name == "stash":
        assert finding.verdict is Verdict.nothing_freed
        assert "suspended generator stash" in finding.holders[0]
        assert "local 'dropped'" in finding.holders[0]
    else:
        assert finding.verdict is (Verdict.verified if claimed_mib else Verdict.nothing_claimed)
        assert finding.freed_mib == pytest.approx(claimed_mib, rel=0.02, abs=0.01)


def test_state_of_adamw_is_eight_bytes_a_parameter() -> None:
    memory = ProcessMemory()
    stepped = Stepped(memory)
    witness = Witness(state_tensors(stepped.owner.current), memory)
    steps = 2 * 4  # one float32 count a tensor
    assert witness.total_mib * 2**20 == STATE_MIB * 2**20 + steps


def test_a_storage_with_two_views_counts_once() -> None:
    tensor = torch.ones(100)
    assert Witness([tensor, tensor.view(10, 10), tensor[3:]], ProcessMemory()).total_mib * 2**20 == 400


def test_parameters_are_witnessed_as_well_as_state() -> None:
    memory = VirtualMemory(1024, 400)
    with memory.attach():
        model = nn.Linear(100, 100)
        witness = Witness(model.parameters(), memory)
        assert witness.alive_mib() * 2**20 == 100 * 101 * 4
        model._apply(memory.fetch)
        assert witness.alive_mib() == 0
