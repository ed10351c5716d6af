"""Tensors and the storages behind them: what takes memory, wherever it is held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor has no memory of its own, but wraps tensors that have, as quantised ones do."""
    return type(tensor) is not Tensor and is_traceable_wrapper_subclass(tensor)


def storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages behind a tensor; of the tensors within, where it is a wrapper."""
    if is_wrapper(tensor):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            yield from storages(getattr(tensor, name))
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()


def within(tensor: Tensor, carry: Callable[[Tensor], Tensor]) -> Tensor:
    """`carry` applied to a tensor; to each tensor within, where it is a wrapper."""
    if not is_wrapper(tensor):
        return carry(tensor)
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {name: within(getattr(tensor, name), carry) for name in names}
    if all(inner[name] is getattr(tensor, name) for name in names):
        return tensor
    rebuilt: Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())  # type: ignore[attr-defined]
    return rebuilt


def carry_module(module: nn.Module, carry: Callable[[Tensor], Tensor]) -> None:
    """Bring a module's parameters and buffers elsewhere; the parameters stay the same objects, as an optimizer needs.

    What nn.Module.to does, but also of fake tensors, which that refuses.
    """
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            parameter.data = carry(parameter.data)
            if parameter.grad is not None:
                parameter.grad = carry(parameter.grad)
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, carry(buffer))
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # cuDNN reads them as one piece of memory


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in an operation's arguments or results, which nest by lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


def state_slots(optimizer: Optimizer, of: Iterable[Tensor] | None = None) -> Iterator[tuple[dict[str, Any], str]]:
    """Where an optimizer keeps its state: `holder[key]` is a tensor. `of` limits it to some parameters.

    Some keep a tensor in an object of the state (a projection, say); its attributes are looked into.
    """
    for parameter in list(optimizer.state) if of is None else of:
        yield from _slots(optimizer.state.get(parameter, {}))


def _slots(holder: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, value in list(holder.items()):
        if isinstance(value, Tensor):
            yield holder, key
        elif type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
            yield from _slots(vars(value))


def state_tensors(optimizer: Optimizer, of: Iterable[Tensor] | None = None) -> Iterator[Tensor]:
    """All tensors of an optimizer's state, or of some parameters'."""
    for holder, key in state_slots(optimizer, of):
        yield holder[key]
