"""Whether state that was to be freed is gone, seen on its storages rather than believed."""

from __future__ import annotations

import gc

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from tft_exp.memory.devices import MIB, DeviceMemory


class StateWitness:
    """Weak references to the storages of an optimizer's state on one device.

    Storages rather than tensors: a tensor object can die while a view, a `detach()` or a `state_dict()` keeps its
    memory. What a policy copied to another device is not counted here, only the original bytes.
    """

    def __init__(self, optimizer: Optimizer, memory: DeviceMemory) -> None:
        self._bytes: dict[int, tuple[StorageWeakRef, int]] = {}
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and memory.holds(value):
                    storage = value.untyped_storage()
                    self._bytes[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())

    @property
    def total_mib(self) -> float:
        """What the state held when the witness was called, each storage once."""
        return sum(nbytes for _, nbytes in self._bytes.values()) / MIB

    def alive_mib(self) -> float:
        """How much of that is still held by anybody. Collects garbage first: a cycle is no holder."""
        gc.collect()
        return sum(nbytes for reference, nbytes in self._bytes.values() if not reference.expired()) / MIB
