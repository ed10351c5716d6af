"""Optimizer-memory policies: where the optimizer's state lies while validation runs, and while a step is taken.

A policy is a context around validation, a way to step, and a claim: the tensors whose memory it says it will free on the
device. The context yields what brings a batch to where validation shall run. Where validation raises, nothing is brought
back: the run is over, and bringing state back onto a full device would hide the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from tft_exp.memory.devices import MIB, DeviceMemory
from tft_exp.memory.tensors import carry_module, state_slots, state_tensors


class OptimizerOwner:
    """The one owner of a run's optimizer. Dropping it here frees its state, because nobody else may hold it.

    A learning-rate scheduler would hold it; so the schedule is a function of the step (training.optimizers), and
    `build` makes a new optimizer whenever one is wanted. `builds` counts them.
    """

    def __init__(self, build: Callable[[], Optimizer]) -> None:
        self._build = build
        self.builds = 0
        self.optimizer: Optimizer | None = None
        self.rebuild()

    @property
    def current(self) -> Optimizer:
        if self.optimizer is None:
            raise RuntimeError("the optimizer was dropped and not built anew")
        return self.optimizer

    def drop(self) -> None:
        self.optimizer = None

    def rebuild(self) -> None:
        self.optimizer = self._build()
        self.builds += 1


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
    moved = fetch_state(owner.current, memory)
    # The cache is not cleared: that would wait for the copies, where validation can begin beside them in blocks that are
    # free already, and the allocator waits by itself before it would run out.
    yield memory.put
    for holder, key in moved:
        holder[key] = memory.put(holder[key])


def fetch_state(optimizer: Optimizer, memory: DeviceMemory, of: Iterable[Tensor] | None = None) -> list[tuple[dict[str, Any], str]]:
    """Take the state from the device to the host, tensor by tensor, so that at no time two copies of all of it lie in one
    place. Returns the slots that were moved."""
    moved = [(holder, key) for holder, key in state_slots(optimizer, of) if memory.holds(holder[key])]
    for holder, key in moved:
        holder[key] = memory.fetch(holder[key])
    return moved


@contextmanager
def cpu_validation(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """Validate on the CPU: the parameters leave the device, the optimizer's state stays."""
    carry_module(model, memory.fetch)
    memory.finish_copies()
    memory.clear_cache()

    def arrived(tensor: Tensor) -> Tensor:
        # The CPU reads it at once, where a copy that is still under way would give it whatever lay in the host's memory.
        host = memory.fetch(tensor)
        memory.finish_copies()
        return host

    yield arrived
    carry_module(model, memory.put)


@contextmanager
def stash(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Move]:
    """The negative control: the optimizer goes to a local variable, which frees nothing."""
    dropped = owner.optimizer
    owner.drop()
    memory.clear_cache()
    yield memory.put
    owner.optimizer = dropped


def nothing(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Tensor]:
    """The claim of a policy that says it frees no tensor."""
    return iter(())


def whole_state(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Tensor]:
    return (tensor for tensor in state_tensors(owner.current) if memory.holds(tensor))


def moved_state(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Tensor]:
    """The whole state; nothing where the host's memory is the device's, because then it has nowhere to go."""
    return whole_state(owner, model, memory) if memory.has_host else iter(())


def moved_model(owner: OptimizerOwner, model: nn.Module, memory: DeviceMemory) -> Iterator[Tensor]:
    held = (tensor.detach() for tensor in chain(model.parameters(), model.buffers()) if memory.holds(tensor))
    return held if memory.has_host else iter(())


def step_of(optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    """A step of some of the parameters alone. Right for optimizers that keep all they know by parameter."""
    wanted = set(parameters)
    everything = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter in wanted]
    try:
        optimizer.step()
    finally:
        for group, parameters_of_group in zip(optimizer.param_groups, everything, strict=True):
            group["params"] = parameters_of_group


def step_in_place(optimizer: Optimizer, memory: DeviceMemory, parameters: Sequence[Tensor]) -> None:
    """A step where the state lies on the device."""
    step_of(optimizer, parameters)


def step_in_buckets(optimizer: Optimizer, memory: DeviceMemory, parameters: Sequence[Tensor]) -> None:
    """A step whose state comes onto the device bucket by bucket, and leaves it again."""
    # torch keeps step counts on the CPU unless the optimizer is fused or capturable (Optimizer.load_state_dict).
    counts_on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for bucket in buckets(parameters, BUCKET_MIB * MIB):
        for holder, key in state_slots(optimizer, bucket):
            if key != "step" or counts_on_device:
                holder[key] = memory.put(holder[key])
        step_of(optimizer, bucket)
        fetch_state(optimizer, memory, bucket)
        # The next bucket's step may read on the host what is still on its way there.
        memory.finish_copies()


BUCKET_MIB = 64


def buckets(parameters: Sequence[Tensor], nbytes: int) -> Iterator[list[Tensor]]:
    """Parameters in order, in groups of at most `nbytes`; a larger one is a group by itself."""
    bucket: list[Tensor] = []
    for parameter in parameters:
        if bucket and sum(member.nbytes for member in bucket) + parameter.nbytes > nbytes:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


Around = Callable[[OptimizerOwner, nn.Module, DeviceMemory], AbstractContextManager[Move]]
Claim = Callable[[OptimizerOwner, nn.Module, DeviceMemory], Iterator[Tensor]]
Step = Callable[[Optimizer, DeviceMemory, Sequence[Tensor]], None]


@dataclass(frozen=True)
class Policy:
    """`claim` gives the tensors whose memory `around_validation` will free on the device; `step` steps the optimizer for
    the parameters given."""

    around_validation: Around
    claim: Claim = nothing
    step: Step = step_in_place
    clear_after_batch: bool = False


POLICIES: dict[str, Policy] = {
    "keep": Policy(keep),
    "clear_cache": Policy(clear_cache),
    "clear_cache_every_batch": Policy(clear_cache, clear_after_batch=True),
    "recreate": Policy(recreate, whole_state),
    "offload": Policy(offload, moved_state),
    "offload_always": Policy(keep, step=step_in_buckets),
    "cpu_validation": Policy(cpu_validation, moved_model),
    "stash": Policy(stash, whole_state),
}


def idle_on(policy: str, memory: DeviceMemory) -> str | None:
    """Why a policy can free nothing on this kind of device, or None where it can."""
    if memory.has_host:
        return None
    if policy in ("offload", "offload_always", "cpu_validation"):
        return f"policy={policy} frees nothing on device=cpu: host memory is the device's memory"
    if policy.startswith("clear_cache"):
        return f"policy={policy} frees nothing on device=cpu: there the process gives its free memory back before every validation"
    return None


def step_in_backward(model: nn.Module, step: Callable[[Sequence[Tensor]], None]) -> None:
    """From now on step each parameter as soon as its gradient is whole, and let the gradient go.

    `step` must not hold an optimizer: the hooks live as long as the model.
    """

    def on_gradient(parameter: Tensor) -> None:
        step([parameter])
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(on_gradient)


def kept_on_host(model: nn.Module, memory: DeviceMemory) -> AbstractContextManager[object]:
    """Within it, what a forward pass keeps for the backward pass lies in host memory until then; parameters stay. Where host
    memory is the device's own, it does nothing."""
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        return tensor if tensor.untyped_storage()._cdata in parameters else memory.fetch(tensor)

    return saved_tensors_hooks(pack, memory.put) if memory.has_host else nullcontext()
