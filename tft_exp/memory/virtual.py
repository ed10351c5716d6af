"""A card that is not there: arithmetic on the CPU, memory as the card would see it.

Tensors are followed by the ledger and laid out by the model of the caching allocator; what does not fit raises torch's
own out-of-memory error. The kernels are the CPU's: workspaces that cuDNN or cuBLAS would take are not in the figures.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from tft_exp.memory.allocator import Block, CachingAllocator, OutOfCapacity
from tft_exp.memory.devices import MIB, Reading
from tft_exp.memory.ledger import Ledger, Place


class VirtualMemory:
    """The memory of a virtual card of `capacity_mib`, of which the context takes `context_mib`, and of its host.

    Figures are true only for what runs inside `attach()`. Host memory is counted without rounding or limit.
    """

    quantity = "allocated"

    def __init__(self, capacity_mib: int, context_mib: int, *, expandable_segments: bool = False) -> None:
        self.device = torch.device("cpu")
        self.capacity_mib: float | None = float(capacity_mib - context_mib)
        self.context_mib = context_mib
        self.source = (
            f"virtual card of {capacity_mib} MiB: live tensors laid out by a model of the CUDA caching allocator, context {context_mib} MiB"
        )
        self.allocator = CachingAllocator((capacity_mib - context_mib) * MIB, expandable=expandable_segments)
        self.ledger = Ledger(self._allocate, self._release)
        self._peak_host = 0

    def attach(self) -> AbstractContextManager[object]:
        return self.ledger

    def now(self) -> Reading:
        return self._reading(self.allocator.allocated, self.allocator.reserved, self.ledger.live[Place.host])

    def reset_peak(self) -> None:
        self.allocator.reset_peaks()
        self._peak_host = self.ledger.live[Place.host]

    def peak(self) -> Reading:
        return self._reading(self.allocator.peak_allocated, self.allocator.peak_reserved, self._peak_host)

    def _reading(self, allocated: int, reserved: int, host: int) -> Reading:
        return Reading(allocated / MIB, reserved / MIB, reserved / MIB + self.context_mib, host / MIB)

    def settle(self) -> None:
        gc.collect()

    def clear_cache(self) -> None:
        self.allocator.flush()

    def synchronize(self) -> None:
        return None

    def holds(self, tensor: Tensor) -> bool:
        return self.ledger.place_of(tensor) is Place.card

    def put(self, tensor: Tensor) -> Tensor:
        return self.ledger.copied(tensor, Place.card)

    def fetch(self, tensor: Tensor) -> Tensor:
        return self.ledger.copied(tensor, Place.host)

    def _allocate(self, place: Place, nbytes: int) -> Block | None:
        if place is Place.host:
            self._peak_host = max(self._peak_host, self.ledger.live[Place.host] + nbytes)
            return None
        try:
            return self.allocator.allocate(nbytes)
        except OutOfCapacity as full:
            raise torch.OutOfMemoryError(self._words(full)) from None

    def _release(self, place: Place, nbytes: int, block: Block | None) -> None:
        if place is Place.card:
            self.allocator.release(block)

    def _words(self, full: OutOfCapacity) -> str:
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
