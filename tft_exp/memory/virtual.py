"""A card that is not there: arithmetic on the CPU, memory as the card would see it.

Tensors are followed by the ledger and laid out by the model of the caching allocator; what does not fit raises torch's
own out-of-memory error. What a card's libraries take beside is added where it is stated (kernels.py).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tft_exp.memory.allocator import Block, CachingAllocator, OutOfCapacity, Shortage
from tft_exp.memory.devices import MIB, Reading
from tft_exp.memory.kernels import PRODUCTS, KernelMemory, in_backward
from tft_exp.memory.ledger import Kind, Ledger, Makeup, Place
from tft_exp.memory.tensors import state_tensors


class VirtualMemory:
    """The memory of a virtual card of `capacity_mib`, of which the context takes `context_mib`, and of its host.

    Figures are true only for what runs inside `attach()`. Host memory is counted without rounding or limit. Without `kernels`
    tensors alone are counted, an LSTM's workspace as the CPU's kernel has it.
    """

    quantity = "allocated"
    has_host = True

    def __init__(
        self, capacity_mib: int, context_mib: int, *, expandable_segments: bool = False, kernels: KernelMemory | None = None
    ) -> None:
        self.device = torch.device("cpu")
        self.capacity_mib: float | None = float(capacity_mib - context_mib)
        self.context_mib = context_mib
        self.source = (
            f"virtual card of {capacity_mib} MiB: live tensors laid out by a model of the CUDA caching allocator, context {context_mib} MiB"
        )
        self.allocator = CachingAllocator((capacity_mib - context_mib) * MIB, expandable=expandable_segments)
        self.kernels = kernels
        self._products_in: set[bool] = set()  # threads with a cuBLAS handle: of the forward (False) and the backward pass
        self.ledger = Ledger(self._allocate, self._release) if kernels is None else Ledger(self._allocate, self._release, self._watch)
        self.shortage: Shortage | None = None  # of the last out-of-memory
        self._model: weakref.ref[nn.Module] | None = None

    @contextmanager
    def attach(self) -> Iterator[None]:
        # Every optimizer's, also of those that are built later, and of each parameter's step where it is taken alone.
        hook = register_optimizer_step_post_hook(self._after_step)
        try:
            with self.ledger:
                yield
        finally:
            hook.remove()

    def observe(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)

    def now(self) -> Reading:
        self.classify()
        card, host = self.ledger.accounts[Place.card], self.ledger.accounts[Place.host]
        return self._reading(self.allocator.allocated, self.allocator.reserved, host.total, card.live)

    def reset_peak(self) -> None:
        self.classify()
        self.allocator.reset_peaks()
        self.ledger.reset_peaks()

    def peak(self) -> Reading:
        self.classify()
        card, host = self.ledger.accounts[Place.card], self.ledger.accounts[Place.host]
        return self._reading(self.allocator.peak_allocated, self.allocator.peak_reserved, host.peak_total, card.at_peak)

    def _reading(self, allocated: int, reserved: int, host: int, makeup: Makeup) -> Reading:
        in_mib = {kind.value: nbytes / MIB for kind, nbytes in makeup.items()}
        return Reading(allocated / MIB, reserved / MIB, reserved / MIB + self.context_mib, host / MIB, in_mib)

    def settle(self) -> None:
        gc.collect()

    def clear_cache(self) -> None:
        self.allocator.flush()

    def synchronize(self) -> None:
        return None

    def finish_copies(self) -> None:
        return None

    def holds(self, tensor: Tensor) -> bool:
        return self.ledger.place_of(tensor) is Place.card

    def put(self, tensor: Tensor) -> Tensor:
        return self.ledger.copied(tensor, Place.card)

    def fetch(self, tensor: Tensor) -> Tensor:
        return self.ledger.copied(tensor, Place.host)

    def classify(self) -> None:
        """Tell the ledger what the model's tensors are for; before its peaks are read."""
        model = self._model() if self._model is not None else None
        if model is not None:
            self._classify_parameters(list(model.parameters()))

    def _classify_parameters(self, parameters: Sequence[Tensor]) -> None:
        self.ledger.classify(parameters, Kind.parameter)
        self.ledger.classify((p.grad for p in parameters if p.grad is not None), Kind.gradient)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # Gradients now, before they are let go: a peak of the step or of the backward pass is still made up of them.
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._classify_parameters(stepped)
        self.ledger.classify(state_tensors(optimizer, of=stepped), Kind.state)

    def _watch(self, operation: Any, args: Sequence[Any], result: Any) -> dict[int, int]:
        assert self.kernels is not None
        if operation in PRODUCTS and (thread := in_backward()) not in self._products_in and self.holds(args[1]):
            self._products_in.add(thread)
            self.ledger.hold(Place.card, self.kernels.cublas_workspace, Kind.workspace)
        return self.kernels.sizes(operation, args, result)

    def _allocate(self, place: Place, nbytes: int) -> Block | None:
        if place is Place.host:
            return None
        try:
            return self.allocator.allocate(nbytes)
        except OutOfCapacity as full:
            # Not the exception itself, whose frames hold what the failed operation held.
            self.shortage = full.shortage
            raise torch.OutOfMemoryError(self._words(full.shortage)) from None

    def _release(self, place: Place, nbytes: int, block: Block | None) -> None:
        if place is Place.card:
            self.allocator.release(block)

    def _words(self, full: Shortage) -> str:
        """What torch says in this case, with the same figures in the same places."""
        context = self.context_mib * MIB
        capacity = self.allocator.capacity + context
        free = self.allocator.capacity - full.reserved
        return (
            f"CUDA out of memory. Tried to allocate {_size(full.requested)}. GPU 0 has a total capacity of {_size(capacity)} of which "
            f"{_size(free)} is free. Including non-PyTorch memory, this process has {_size(context + full.reserved)} memory in use. "
            f"Of the allocated memory {_size(full.allocated)} is allocated by PyTorch, and {_size(full.reserved - full.allocated)} is "
            f"reserved by PyTorch but unallocated. (A virtual card; largest free block {_size(full.largest_free)}.)"
        )


def _size(nbytes: float) -> str:
    """A size as torch writes it (format_size in CUDACachingAllocator.cpp)."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes > unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes:.0f} bytes"
