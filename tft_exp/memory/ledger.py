"""Live bytes of tensors, storage by storage: every operation's new storages are counted until nobody holds them.

A storage counts once, however many tensors look at it. Each lies in one of two places, the card or its host, though
all of them are CPU memory: an operation's results lie where its inputs lie, and only `put` and `fetch` carry tensors
across, as a copy between devices would. Bytes inside a kernel that come and go without a tensor are not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass


class Place(Enum):
    card = "card"
    host = "host"


@dataclass
class Entry:
    """One live storage. `handle` is what `on_allocate` returned for it."""

    place: Place
    nbytes: int
    handle: Any


class Ledger(TorchDispatchMode):
    """Follows storages made while it is active, and those given to it by `adopt`.

    `on_allocate(place, nbytes)` may raise, as a full card does; `on_release(place, nbytes, handle)` tells of the end.
    """

    def __init__(
        self,
        on_allocate: Callable[[Place, int], Any] = lambda place, nbytes: None,
        on_release: Callable[[Place, int, Any], None] = lambda place, nbytes, handle: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[Place, int] = {Place.card: 0, Place.host: 0}
        self._on_allocate = on_allocate
        self._on_release = on_release
        # Keyed by the storage object, which torch keeps the same for as long as the storage lives.
        self._entries: weakref.WeakKeyDictionary[torch.UntypedStorage, Entry] = weakref.WeakKeyDictionary()

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where a tensor's storage lies; None where the ledger does not follow it."""
        entry = next((self._entries.get(storage) for storage in storages(tensor)), None)
        return None if entry is None else entry.place

    def adopt(self, tensor: Tensor, place: Place) -> None:
        """Follow the storages of a tensor made elsewhere, as lying in `place`."""
        for storage in storages(tensor):
            if storage not in self._entries:
                self._open(storage, place)

    def copied(self, tensor: Tensor, place: Place) -> Tensor:
        """The same values in storage of its own in `place`; the tensor itself where it lies there already."""
        if self.place_of(tensor) is place:
            return tensor
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.detach().clone()
        self.adopt(copy, place)
        return copy

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        place: Place | None = None
        for tensor in tensors_in(result):
            for storage in storages(tensor):
                entry = self._entries.get(storage)
                if entry is None:
                    place = place or self._place_of_inputs(args, kwargs)
                    self._open(storage, place)
                elif entry.nbytes != storage.nbytes():
                    self._close(storage, entry)
                    self._open(storage, entry.place)
        return result

    def _place_of_inputs(self, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Place:
        """Card if any input lies there; host if all that are followed do; for a factory, which has none, the card."""
        found = {self.place_of(tensor) for tensor in tensors_in((*args, *(kwargs or {}).values()))}
        return Place.host if Place.host in found and Place.card not in found else Place.card

    def _open(self, storage: torch.UntypedStorage, place: Place) -> None:
        nbytes = storage.nbytes()
        entry = Entry(place, nbytes, self._on_allocate(place, nbytes))
        self._entries[storage] = entry
        self.live[place] += nbytes
        finalizer = weakref.finalize(storage, self._end, entry)
        finalizer.atexit = False

    def _close(self, storage: torch.UntypedStorage, entry: Entry) -> None:
        self._end(Entry(entry.place, entry.nbytes, entry.handle))
        entry.nbytes, entry.handle = 0, None
        del self._entries[storage]

    def _end(self, entry: Entry) -> None:
        self.live[entry.place] -= entry.nbytes
        self._on_release(entry.place, entry.nbytes, entry.handle)


def storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages behind a tensor; of the tensors within, where it is a wrapper without memory of its own."""
    if type(tensor) is not Tensor and is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from storages(getattr(tensor, name))
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in an operation's arguments or results, which nest by lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
