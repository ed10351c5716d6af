"""What a policy claims to free against what was freed, and who still holds the rest.

Nothing is asked of the policy but the list of tensors whose memory it says will go. Weak witnesses on their storages, the
device's own figures before and after, and a census of the device's tensors say the rest.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tft_exp.memory.devices import MIB, DeviceMemory
from tft_exp.memory.holders import holders_of
from tft_exp.memory.tensors import storages

# The device's figure may fall short of the claim by this much before it counts: an allocator's rounding, a step count.
SHORT_BY = 0.01
SHORT_BY_MIB = 0.01


class Verdict(Enum):
    nothing_claimed = "nothing claimed"
    verified = "verified"
    partial = "partial"
    nothing_freed = "nothing freed"

    @property
    def stands(self) -> bool:
        return self in (Verdict.nothing_claimed, Verdict.verified)


@dataclass(frozen=True)
class Finding:
    """The audit of one claim. `freed_mib` is what the device's live bytes fell by; where the device has no exact figure (a
    process), the claimed storages that are gone less new tensors. `holders` names who holds what did not go."""

    claimed_mib: float
    freed_mib: float
    verdict: Verdict
    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.verdict.value}: claimed {self.claimed_mib:.2f} MiB, freed {self.freed_mib:.2f} MiB"
        return text + "".join(f"\n  still held by {holder}" for holder in self.holders)


class Witness:
    """Weak references to the storages of some tensors on one device.

    Storages rather than tensors: a tensor object can die while a view, a `detach()` or a `state_dict()` keeps its
    memory. What a policy copied to another device is not counted here, only the original bytes.
    """

    def __init__(self, tensors: Iterable[Tensor], memory: DeviceMemory) -> None:
        self._bytes: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in tensors:
            if memory.holds(tensor):
                for storage in storages(tensor):
                    self._bytes[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    @property
    def total_mib(self) -> float:
        """What they held when the witness was called, each storage once."""
        return sum(nbytes for _, nbytes in self._bytes.values()) / MIB

    def alive(self) -> dict[int, int]:
        """Those still held by anybody, garbage in cycles included: storage -> bytes."""
        return {address: nbytes for address, (reference, nbytes) in self._bytes.items() if not reference.expired()}

    def alive_mib(self) -> float:
        """How much is still held. Collects garbage first: a cycle is no holder."""
        gc.collect()
        return sum(self.alive().values()) / MIB


class Audit:
    """Open it before the policy acts, `close` it when the policy says that it has."""

    def __init__(self, claimed: Iterable[Tensor], memory: DeviceMemory) -> None:
        self._memory = memory
        self._witness = Witness(claimed, memory)
        self.claimed_mib = self._witness.total_mib
        if self.claimed_mib:
            memory.settle()
            self._known = {address for _, address, _ in _census(memory)}
            self._before_mib = memory.now().allocated_mib

    def close(self, *, name_holders: bool = True) -> Finding:
        """The verdict. Naming the holders takes some seconds where the claim does not stand, and nothing where it does."""
        if not self.claimed_mib:
            return Finding(0.0, 0.0, Verdict.nothing_claimed)
        # Before any name is looked for, because that brings older objects back into the collector's sight.
        made = Witness((tensor for tensor, address, _ in _census(self._memory) if address not in self._known), self._memory)
        unreferenced = self._witness.alive()
        in_cycles = self._holders(unreferenced) if unreferenced and name_holders else ()
        gc.collect()
        alive, new = self._witness.alive(), made.alive()
        gone_mib = self.claimed_mib - sum(alive.values()) / MIB
        if self._memory.quantity == "allocated":
            freed_mib = self._before_mib - self._memory.now().allocated_mib
        else:
            freed_mib = gone_mib - sum(new.values()) / MIB
        wanted_mib = self.claimed_mib * (1 - SHORT_BY) - SHORT_BY_MIB
        if gone_mib >= wanted_mib and freed_mib >= wanted_mib:
            cycles = tuple(f"a reference cycle until it was collected: {holder}" for holder in in_cycles)
            return Finding(self.claimed_mib, freed_mib, Verdict.verified, cycles)
        verdict = Verdict.nothing_freed if freed_mib < self.claimed_mib * SHORT_BY + SHORT_BY_MIB else Verdict.partial
        holders: tuple[str, ...] = ()
        if name_holders:
            copies = tuple(f"{holder} (a copy made on the device)" for holder in self._holders(new)) if gone_mib > freed_mib else ()
            holders = (self._holders(alive) if alive else ()) + copies or ("something outside of Python",)
        return Finding(self.claimed_mib, freed_mib, verdict, holders)

    def _holders(self, addresses: dict[int, int]) -> tuple[str, ...]:
        return tuple(holders_of([tensor for tensor, address, _ in _census(self._memory) if address in addresses]))


def _census(memory: DeviceMemory) -> Iterator[tuple[Tensor, int, int]]:
    """All tensors of the device that Python knows: the tensor, and address and bytes of each of its storages."""
    for tensor in [member for member in gc.get_objects() if issubclass(type(member), Tensor)]:
        if memory.holds(tensor):
            for storage in storages(tensor):
                yield tensor, storage._cdata, storage.nbytes()
