"""The ledger against torch's own profiler, and storage by storage."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile

from tests.memory.stepped import Stepped
from tft_exp.memory.ledger import Ledger, Place
from tft_exp.memory.policies import POLICIES
from tft_exp.memory.virtual import VirtualMemory
from tft_exp.training.galore import StackedGaLore
from tft_exp.training.lean_optimizers import BFloat16AdamW, Muon
from tft_exp.training.lowbit import EagerAdamW4bit, EagerAdamW8bit

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adamw fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "adamw bf16": lambda p: BFloat16AdamW(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
    "adamw 8 bit": lambda p: EagerAdamW8bit(p),
    "adamw 4 bit": lambda p: EagerAdamW4bit(p),
    "galore": lambda p: StackedGaLore([{"params": p, "rank": 8, "update_proj_gap": 2, "scale": 1.0, "projection_type": "std"}]),
    "muon": lambda p: Muon(
        [{"params": p[:1], "orthogonal": True}, {"params": p[1:]}], lr=1e-3, momentum=0.9, betas=(0.9, 0.9), eps=1e-8, weight_decay=0.0
    ),
}


def live(ledger: Ledger) -> int:
    gc.collect()
    return ledger.live(Place.card)


def profiled_bytes(work: Callable[[], None]) -> int:
    """Net bytes that torch's CPU allocator gave out while `work` ran, by the profiler's own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
        gc.collect()
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_live_bytes_equal_the_profilers_in_every_phase(make: Callable[[list[nn.Parameter]], Optimizer]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 160), nn.GELU(), nn.LayerNorm(160), nn.Linear(160, 1))
    inputs = torch.randn(32, 96)
    ledger = Ledger()
    for tensor in [inputs, *model.parameters()]:
        ledger.adopt(tensor, Place.card)
    held: dict[str, object] = {}

    def forward() -> None:
        held["loss"] = model(inputs).square().mean()

    def backward() -> None:
        held.pop("loss").backward()  # type: ignore[attr-defined]

    def build() -> None:
        held["optimizer"] = make(list(model.parameters()))

    def step() -> None:
        held["optimizer"].step()  # type: ignore[attr-defined]

    def zero() -> None:
        held["optimizer"].zero_grad(set_to_none=True)  # type: ignore[attr-defined]

    def drop() -> None:
        held.pop("optimizer")

    with ledger:
        for phase in (build, forward, backward, step, zero, forward, backward, step, drop):
            before = live(ledger)
            expected = profiled_bytes(phase)
            assert live(ledger) - before == pytest.approx(expected, abs=0.01 * 2**20), phase.__name__


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_live_bytes_equal_the_profilers_around_every_policy(name: str) -> None:
    """On card and host together, because to the profiler both are the CPU's memory."""
    memory, policy = VirtualMemory(4096, 450), POLICIES[name]
    held: dict[str, Any] = {}

    def make() -> None:
        held["stepped"] = Stepped(memory, policy=policy)

    def enter() -> None:
        stepped = held["stepped"]
        held["around"] = policy.around_validation(stepped.owner, stepped.model, memory)
        held["move"] = held["around"].__enter__()

    def validate() -> None:
        held["result"] = held["stepped"].validate(held["move"])

    def leave() -> None:
        held.pop("around").__exit__(None, None, None)
        del held["result"], held["move"]

    def step() -> None:
        held["stepped"].step()

    with memory.attach():
        for phase in (make, step, enter, validate, leave, step):
            gc.collect()
            before = sum(memory.ledger.live(place) for place in Place)
            expected = profiled_bytes(phase)
            found = sum(memory.ledger.live(place) for place in Place) - before
            assert found == pytest.approx(expected, abs=0.01 * 2**20), phase.__name__
            assert memory.allocator.allocated - memory.ledger.live(Place.card) < 0.01 * 2**20
            assert sum(memory.ledger.accounts[Place.card].live.values()) == memory.ledger.live(Place.card)


def test_a_storage_counts_once_whatever_looks_at_it() -> None:
    with Ledger() as ledger:
        base = torch.ones(1000)
        views = [base.view(10, 100), base[5:], base.detach()]
        assert ledger.live(Place.card) == 4000
        base.add_(1)
        assert ledger.live(Place.card) == 4000
        del base
        assert live(ledger) == 4000, "a view holds it"
        del views
        assert live(ledger) == 0


def test_a_resized_storage_counts_with_its_new_size() -> None:
    with Ledger() as ledger:
        tensor = torch.ones(100)
        tensor.resize_(1000)
        assert ledger.live(Place.card) == 4000
        del tensor
        assert live(ledger) == 0


def test_what_autograd_saves_is_live_until_the_backward_pass() -> None:
    with Ledger() as ledger:
        weight = torch.ones(50, 50, requires_grad=True)
        loss = (weight.exp() * 2).sum()
        assert live(ledger) == 2 * 10_000 + 4  # the weight, exp's result which its own gradient needs, the loss
        loss.backward()
        assert live(ledger) == 2 * 10_000 + 4  # the gradient in the place of what was saved
        assert weight.grad is not None


class Wrapper(torch.Tensor):
    """Two tensors that look like one, as quantised tensors are."""

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)  # type: ignore[attr-defined]

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: object, stride: object) -> Wrapper:
        return Wrapper(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def test_a_wrapper_counts_what_it_wraps() -> None:
    ledger = Ledger()
    wrapper = Wrapper(torch.ones(100), torch.ones(50))
    ledger.adopt(wrapper, Place.card)
    assert ledger.live(Place.card) == 600
    del wrapper
    assert live(ledger) == 0


def test_results_lie_where_their_inputs_lie() -> None:
    with Ledger() as ledger:
        card = torch.ones(10)
        host = ledger.copied(card, Place.host)
        assert torch.equal(card, host)
        assert ledger.place_of(card + 1) is Place.card
        assert ledger.place_of(host + 1) is Place.host
        assert ledger.place_of(host + card) is Place.card
        assert ledger.copied(host, Place.host) is host
        back = ledger.copied(host, Place.card)
        assert (ledger.place_of(back), ledger.place_of(host)) == (Place.card, Place.host)
        assert (ledger.live(Place.card), ledger.live(Place.host)) == (80, 40)


def test_an_allocation_that_is_refused_leaves_no_trace() -> None:
    def refuse(place: Place, nbytes: int) -> None:
        if nbytes > 1000:
            raise MemoryError

    with Ledger(refuse) as ledger:
        small = torch.ones(10)
        with pytest.raises(MemoryError):
            torch.ones(10_000)
        assert ledger.live(Place.card) == small.nbytes
        assert ledger.place_of(small * 2) is Place.card
