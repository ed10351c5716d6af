"""Live bytes of tensors, storage by storage: every operation's new storages are counted until nobody holds them.

A storage counts once, however many tensors look at it. Each lies in one of two places, the card or its host, though
all of them are CPU memory: an operation's results lie where its inputs lie, and only `copied` carries tensors across, as
a copy between devices would. Bytes inside a kernel that come and go without a tensor are not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tft_exp.memory.tensors import storages, tensors_in, within


class Place(Enum):
    card = "card"
    host = "host"


class Kind(Enum):
    """What a storage is for. `workspace` is what a library keeps and no tensor shows (kernels.py); `other` is what nobody
    claimed: activations, data, an operation's own work space."""

    parameter = "parameters"
    gradient = "gradients"
    state = "optimizer state"
    workspace = "kernel workspace"
    other = "other"


Makeup = dict[Kind, int]  # bytes by kind


@dataclass
class Entry:
    """One live storage. `nbytes` is counted, `storage_nbytes` what the storage itself holds; `handle` is what `on_allocate`
    returned for it; `born` its number in the order of allocations."""

    place: Place
    nbytes: int
    storage_nbytes: int
    handle: Any
    born: int
    kind: Kind = Kind.other


class Account:
    """Live bytes in one place by kind, and their make-up at the moment of their peak."""

    def __init__(self) -> None:
        self.live: Makeup = dict.fromkeys(Kind, 0)
        self.total = 0
        self.reset_peak(0)

    def reset_peak(self, moment: int) -> None:
        self.peak_total, self.at_peak, self.peak_moment = self.total, dict(self.live), moment

    def open(self, entry: Entry) -> None:
        self.total += entry.nbytes
        self.live[entry.kind] += entry.nbytes
        if self.total > self.peak_total:
            self.reset_peak(entry.born)

    def close(self, entry: Entry) -> None:
        self.total -= entry.nbytes
        self.live[entry.kind] -= entry.nbytes

    def reclassify(self, entry: Entry, kind: Kind) -> None:
        """A live storage turns out to be of another kind; it was so at the peak too, if it was there by then."""
        for makeup in (self.live, self.at_peak) if entry.born <= self.peak_moment else (self.live,):
            makeup[entry.kind] -= entry.nbytes
            makeup[kind] += entry.nbytes
        entry.kind = kind


class Ledger(TorchDispatchMode):
    """Follows storages made while it is active, and those given to it by `adopt`.

    `on_allocate(place, nbytes)` may raise, as a full card does; `on_release(place, nbytes, handle)` tells of the end.
    `watch(operation, args, result)` sees every operation, and says which storages (by `_cdata`) count with another size.
    """

    def __init__(
        self,
        on_allocate: Callable[[Place, int], Any] = lambda place, nbytes: None,
        on_release: Callable[[Place, int, Any], None] = lambda place, nbytes, handle: None,
        watch: Callable[[Any, Sequence[Any], Any], dict[int, int]] = lambda operation, args, result: {},
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.accounts = {place: Account() for place in Place}
        self._on_allocate = on_allocate
        self._on_release = on_release
        self._watch = watch
        self._allocations = 0
        self.copied_bytes = 0  # between the places, both ways
        # By address of the storage's C++ object, which is nobody else's until the callback of its end has run.
        self._entries: dict[int, Entry] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap every call against being compiled, which nothing here is.
        return False

    def live(self, place: Place) -> int:
        """Bytes of live storages in a place."""
        return self.accounts[place].total

    def reset_peaks(self) -> None:
        for account in self.accounts.values():
            account.reset_peak(self._allocations)

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where a tensor's storage lies; None where the ledger does not follow it."""
        entry = next((self._entries.get(storage._cdata) for storage in storages(tensor)), None)
        return None if entry is None else entry.place

    def adopt(self, tensor: Tensor, place: Place, kind: Kind = Kind.other) -> None:
        """Follow the storages of a tensor made elsewhere, as lying in `place`."""
        for storage in storages(tensor):
            if storage._cdata not in self._entries:
                self._open(storage, place, kind)

    def classify(self, tensors: Iterable[Tensor], kind: Kind) -> None:
        """Say what tensors are for; those that are not followed are passed over."""
        for tensor in tensors:
            for storage in storages(tensor):
                entry = self._entries.get(storage._cdata)
                if entry is not None and entry.kind is not kind:
                    self.accounts[entry.place].reclassify(entry, kind)

    def copied(self, tensor: Tensor, place: Place) -> Tensor:
        """The same values in storage of its own in `place`, of the same kind; the tensor itself where it lies there."""
        return within(tensor, lambda plain: self._copied(plain, place))

    def _copied(self, tensor: Tensor, place: Place) -> Tensor:
        entry = self._entries.get(tensor.untyped_storage()._cdata)
        if entry is not None and entry.place is place:
            return tensor
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.detach().clone()
        self.copied_bytes += copy.untyped_storage().nbytes()
        self.adopt(copy, place, Kind.other if entry is None else entry.kind)
        return copy

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A wrapper's own operations come back here on the tensors within, its work space among them.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        sizes = self._watch(func, args, result)
        place: Place | None = None
        for tensor in tensors_in(result):
            for storage in storages(tensor):
                entry = self._entries.get(storage._cdata)
                if entry is None:
                    place = place or self._place_of_inputs(args, kwargs)
                    self._open(storage, place, nbytes=sizes.get(storage._cdata))
                elif entry.storage_nbytes != storage.nbytes():
                    self._close(storage._cdata)
                    self._open(storage, entry.place, entry.kind)
        return result

    def _place_of_inputs(self, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Place:
        """Card if any input lies there; host if all that are followed do; for a factory, which has none, the card."""
        found = {self.place_of(tensor) for tensor in tensors_in((*args, *(kwargs or {}).values()))}
        return Place.host if Place.host in found and Place.card not in found else Place.card

    def hold(self, place: Place, nbytes: int, kind: Kind) -> None:
        """Count bytes that no tensor holds, to the end."""
        self._enter(place, nbytes, nbytes, kind)

    def _open(self, storage: torch.UntypedStorage, place: Place, kind: Kind = Kind.other, nbytes: int | None = None) -> None:
        entry = self._enter(place, storage.nbytes() if nbytes is None else nbytes, storage.nbytes(), kind)
        key = storage._cdata
        self._entries[key] = entry
        self._references[key] = weakref.ref(storage, lambda _: self._close(key))

    def _enter(self, place: Place, nbytes: int, storage_nbytes: int, kind: Kind) -> Entry:
        handle = self._on_allocate(place, nbytes)
        self._allocations += 1
        entry = Entry(place, nbytes, storage_nbytes, handle, self._allocations, kind)
        self.accounts[place].open(entry)
        return entry

    def _close(self, key: int) -> None:
        entry = self._entries.pop(key)
        del self._references[key]
        self.accounts[entry.place].close(entry)
        self._on_release(entry.place, entry.nbytes, entry.handle)
