"""What a device's memory holds now and held at its peak, each figure with its source.

One small interface over CUDA (and XPU, whose torch API has the same names), MPS and the CPU. All figures are MiB.
A figure that a device does not give is None, never 0: on a CPU build `torch.cuda.max_memory_allocated()` silently
returns 0, so nothing here asks a device for what it does not keep.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor, nn

from tft_exp.memory.allocator import Shortage
from tft_exp.memory.tensors import within

MIB = 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


@dataclass(frozen=True)
class Reading:
    """A device's memory at one moment, or at its peak.

    `allocated_mib` is what `DeviceMemory.quantity` names; `reserved_mib` the caching allocator's segments;
    `driver_mib` all that the driver has given out on that card, contexts and other processes included; `host_mib` the
    tensors in host memory, where they are followed; `makeup` what the device's tensors are for, by kind, where it is known.
    """

    allocated_mib: float
    reserved_mib: float | None = None
    driver_mib: float | None = None
    host_mib: float | None = None
    makeup: Mapping[str, float] | None = None

    @property
    def makeup_text(self) -> str:
        """Such as `parameters 361 MiB, optimizer state 722 MiB`, largest first; what is nothing is left out."""
        parts = sorted((self.makeup or {}).items(), key=lambda part: -part[1])
        return ", ".join(f"{kind} {mib:,.0f} MiB" for kind, mib in parts if mib >= 0.5)


class DeviceMemory(Protocol):
    """Reads one device's memory. `quantity` is the word that stands in metric names: allocated, or rss. `capacity_mib` is
    what tensors may take of it at most: of a capped or virtual card without the context. `has_host` says whether host
    memory is another memory, to which something could be moved; `shortage` has the figures of the last out-of-memory, where
    the device keeps them."""

    device: torch.device
    quantity: str
    source: str
    capacity_mib: float | None
    shortage: Shortage | None

    @property
    def has_host(self) -> bool: ...

    def now(self) -> Reading: ...

    def reset_peak(self) -> None:
        """Start a new interval for `peak`."""

    def peak(self) -> Reading:
        """The highest figures since `reset_peak`."""

    def settle(self) -> None:
        """Collect garbage, and make `now` free of what is no longer held where the figure would otherwise keep it."""

    def clear_cache(self) -> None:
        """Give memory that holds no tensor back to the driver or the system."""

    def synchronize(self) -> None:
        """Wait until all computation given to the device is done; copies to the host may still be under way."""

    def finish_copies(self) -> None:
        """Wait until what was fetched has come."""

    def attach(self) -> AbstractContextManager[object]:
        """Within it the figures are true, and work runs as on the device."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is this device's."""

    def put(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; itself where it is there."""

    def fetch(self, tensor: Tensor) -> Tensor:
        """The tensor in host memory; itself where it is there. Its values may be read after `finish_copies`."""

    def observe(self, model: nn.Module) -> None:
        """Told of the model, so that `makeup` can tell its parameters and gradients from the rest."""


class RealDevice:
    """What is alike for all devices that torch itself knows."""

    device: torch.device
    shortage: Shortage | None = None

    @property
    def has_host(self) -> bool:
        return self.device.type != "cpu"

    def attach(self) -> AbstractContextManager[object]:
        return nullcontext()

    def holds(self, tensor: Tensor) -> bool:
        # A device that was named without its number, as MPS is, is the one that its tensors lie on.
        return tensor.device.type == self.device.type and self.device.index in (None, tensor.device.index)

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def fetch(self, tensor: Tensor) -> Tensor:
        return tensor.cpu()

    def finish_copies(self) -> None:
        return None

    def observe(self, model: nn.Module) -> None:
        return None


class AcceleratorMemory(RealDevice):
    """CUDA and XPU: torch's caching allocator keeps exact figures and peaks."""

    quantity = "allocated"

    def __init__(self, device: torch.device, capacity_mib: int | None = None, context_mib: int = 0) -> None:
        self.device = device
        self._api: ModuleType = getattr(torch, device.type)
        self._api.init()
        self._copies = self._api.Stream(device)
        total_mib = self._api.mem_get_info(device)[1] / MIB
        self.capacity_mib: float | None = total_mib
        self.source = f"torch caching allocator ({device.type})"
        if capacity_mib is not None:
            # The cap holds the caching allocator alone, so the context's share is taken off it beforehand.
            usable = capacity_mib - context_mib
            if usable >= total_mib:
                raise ValueError(f"a card of {total_mib:.0f} MiB cannot stand for one of {capacity_mib} MiB")
            self._api.set_per_process_memory_fraction(usable / total_mib, device)
            self.capacity_mib = float(usable)
            self.source += f", capped at {usable} MiB"

    def now(self) -> Reading:
        free, total = self._api.mem_get_info(self.device)
        return Reading(
            self._api.memory_allocated(self.device) / MIB,
            self._api.memory_reserved(self.device) / MIB,
            (total - free) / MIB,
        )

    def reset_peak(self) -> None:
        self._api.reset_peak_memory_stats(self.device)

    def peak(self) -> Reading:
        return Reading(self._api.max_memory_allocated(self.device) / MIB, self._api.max_memory_reserved(self.device) / MIB)

    def settle(self) -> None:
        gc.collect()

    def clear_cache(self) -> None:
        self._api.empty_cache()

    def synchronize(self) -> None:
        self._api.current_stream(self.device).synchronize()

    def fetch(self, tensor: Tensor) -> Tensor:
        return within(tensor, self._fetch) if self.holds(tensor) else tensor

    def _fetch(self, tensor: Tensor) -> Tensor:
        # On a stream of its own, so that validation's first batches are computed while the state still leaves. The
        # allocator waits for the copy before it gives the block to anybody else, and before it calls memory full.
        host = torch.empty_like(tensor, device="cpu", pin_memory=self.device.type == "cuda")
        self._copies.wait_stream(self._api.current_stream(self.device))
        with self._api.stream(self._copies):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._copies)
        return host

    def put(self, tensor: Tensor) -> Tensor:
        if self.holds(tensor):
            return tensor
        # Pinned memory is copied without the host waiting; what is still on its way out must have come first.
        self._api.current_stream(self.device).wait_stream(self._copies)
        return within(tensor, lambda plain: plain.to(self.device, non_blocking=True))

    def finish_copies(self) -> None:
        self._copies.synchronize()


class Sampler:
    """The highest value of a figure that its owner keeps no peak of: read every few milliseconds by a thread.

    A peak shorter than the interval is missed, so the source says that the figure is sampled.
    """

    def __init__(self, read: Any, interval_seconds: float) -> None:
        self._read = read
        self._interval = interval_seconds
        self._lock = threading.Lock()
        self._highest: int = read()
        threading.Thread(target=self._run, daemon=True, name="memory-sampler").start()

    def _run(self) -> None:
        tick = threading.Event()
        while not tick.wait(self._interval):
            self._see(self._read())

    def _see(self, value: int) -> None:
        with self._lock:
            self._highest = max(self._highest, value)

    def reset(self) -> None:
        value = self._read()
        with self._lock:
            self._highest = value

    def highest(self) -> int:
        self._see(self._read())
        return self._highest


SAMPLE_SECONDS = 0.005


class MpsMemory(RealDevice):
    """Apple's MPS: the allocator gives its present figures but no peak."""

    quantity = "allocated"
    source = f"torch MPS allocator; peaks sampled every {SAMPLE_SECONDS * 1000:.0f} ms"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.capacity_mib: float | None = torch.mps.recommended_max_memory() / MIB
        self._sampler = Sampler(torch.mps.current_allocated_memory, SAMPLE_SECONDS)

    def now(self) -> Reading:
        return Reading(torch.mps.current_allocated_memory() / MIB, driver_mib=torch.mps.driver_allocated_memory() / MIB)

    def reset_peak(self) -> None:
        self._sampler.reset()

    def peak(self) -> Reading:
        return Reading(self._sampler.highest() / MIB)

    def settle(self) -> None:
        gc.collect()

    def clear_cache(self) -> None:
        torch.mps.empty_cache()

    def synchronize(self) -> None:
        torch.mps.synchronize()


class ProcessMemory(RealDevice):
    """The CPU: resident memory of this process, all libraries included.

    On Linux the kernel's own high-water mark (VmHWM) is reset by writing 5 to /proc/self/clear_refs (proc(5)), so the
    peak of a phase is exact. Elsewhere it is sampled.
    """

    quantity = "rss"

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.capacity_mib: float | None = psutil.virtual_memory().total / MIB
        self._process = psutil.Process()
        self._sampler: Sampler | None = None
        try:
            self._clear_high_water_mark()
            self.source = "process RSS; peaks from the kernel's high-water mark"
        except OSError:
            self._sampler = Sampler(self._rss, SAMPLE_SECONDS)
            self.source = f"process RSS; peaks sampled every {SAMPLE_SECONDS * 1000:.0f} ms"

    def _rss(self) -> int:
        return int(self._process.memory_info().rss)

    @staticmethod
    def _clear_high_water_mark() -> None:
        Path("/proc/self/clear_refs").write_text("5")

    def now(self) -> Reading:
        # malloc keeps freed blocks; left alone they would count as held, and as freed by whatever policy first gives them back.
        self.clear_cache()
        return Reading(self._rss() / MIB)

    def reset_peak(self) -> None:
        self.clear_cache()  # or the mark would stand at what malloc keeps of an earlier peak
        if self._sampler is not None:
            self._sampler.reset()
        else:
            self._clear_high_water_mark()

    def peak(self) -> Reading:
        if self._sampler is not None:
            return Reading(self._sampler.highest() / MIB)
        status = Path("/proc/self/status").read_text()
        kib = int(status.split("VmHWM:", 1)[1].split(maxsplit=1)[0])
        return Reading(kib / 1024)

    def settle(self) -> None:
        gc.collect()

    def clear_cache(self) -> None:
        if sys.platform == "linux":
            # glibc alone has it; musl gives memory back by itself.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def synchronize(self) -> None:
        return None


def keep_freed_memory() -> None:
    """Have the C library keep freed blocks for the next step, instead of giving them back to the system and fetching them anew,
    page by page: a training step had 20,000 page faults, and has some hundred. Before memory is read it is given back all the
    same (ProcessMemory.now). Settings of the user's own (GLIBC_TUNABLES, MALLOC_...) stand."""
    if sys.platform != "linux" or any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, 1 << 30)
        set_option(M_TRIM_THRESHOLD, (1 << 31) - 1)


def open_memory(device: torch.device, capacity_mib: int | None = None, context_mib: int = 0) -> DeviceMemory:
    """The memory of a real `device`. Raises ValueError where a card is smaller than the one that it shall stand for."""
    if device.type in ("cuda", "xpu"):
        return AcceleratorMemory(device, capacity_mib, context_mib)
    if device.type == "mps":
        return MpsMemory(device)
    return ProcessMemory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on a device or on the host.

    torch has a type for devices; the CPU allocator raises a plain RuntimeError (c10/core/impl/alloc_cpu.cpp) that
    only its text tells apart.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
