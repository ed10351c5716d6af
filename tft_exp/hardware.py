"""The device that a configuration names, and its memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from tft_exp.config import DeviceConfig, DeviceKind, Precision
from tft_exp.errors import ConfigError
from tft_exp.memory.devices import MIB, DeviceMemory, keep_freed_memory, open_memory
from tft_exp.memory.kernels import KernelMemory
from tft_exp.memory.virtual import VirtualMemory


def planned_device(config: DeviceConfig) -> DeviceConfig:
    """The device as a plan sees it: `auto` decided, and a real card's size read where this machine has one."""
    kind, capacity = config.kind, config.capacity_mib
    if kind is DeviceKind.auto:
        kind = DeviceKind.cuda if torch.cuda.is_available() else DeviceKind.cpu
    if kind is DeviceKind.cuda and capacity is None and torch.cuda.is_available():
        capacity = torch.cuda.get_device_properties(config.index).total_memory // MIB
    return replace(config, kind=kind, capacity_mib=capacity)


def resolve_device(config: DeviceConfig) -> torch.device:
    """The device that the config names, or the best there is. Raises ConfigError where it is not there."""
    there = {
        DeviceKind.cuda: torch.cuda.is_available(),
        DeviceKind.mps: torch.backends.mps.is_available(),
        DeviceKind.xpu: torch.xpu.is_available(),
        DeviceKind.cpu: True,
    }
    kind = config.kind
    if kind is DeviceKind.auto:
        kind = next(kind for kind, available in there.items() if available)
    if kind is DeviceKind.virtual:
        return torch.device("cpu")
    if not there[kind]:
        available = ", ".join(kind.value for kind, available in there.items() if available)
        raise ConfigError(
            f"device.kind={kind.value}: this torch ({torch.__version__}) sees no such device",
            where="device.kind",
            mend=f"available: {available}",
        )
    if kind in (DeviceKind.cpu, DeviceKind.mps):
        return torch.device(kind.value)
    count = getattr(torch, kind.value).device_count()
    if config.index >= count:
        raise ConfigError(f"device.index={config.index} is not allowed: there are {count} devices of this kind", where="device.index")
    return torch.device(kind.value, config.index)


def open_device_memory(config: DeviceConfig, device: torch.device) -> DeviceMemory:
    """The memory of the device, real or virtual. Raises ConfigError where a card cannot stand for the one asked for."""
    if device.type == "cpu":
        keep_freed_memory()
    if config.kind is DeviceKind.virtual:
        assert config.capacity_mib is not None
        return VirtualMemory(
            config.capacity_mib, config.context_mib, expandable_segments=config.expandable_segments, kernels=kernel_memory(config)
        )
    try:
        return open_memory(device, config.capacity_mib, config.context_mib)
    except ValueError as error:
        raise ConfigError(f"device.capacity_mib={config.capacity_mib} is not allowed: {error}", where="device.capacity_mib") from error


def kernel_memory(config: DeviceConfig) -> KernelMemory:
    """What kernels take beside tensors: of cards alone is anything known."""
    if config.kind not in (DeviceKind.cuda, DeviceKind.virtual):
        return KernelMemory(0, config.lstm_reserve)
    return KernelMemory(config.cublas_workspace_kib * 1024, config.lstm_reserve)


# Of torch.cpu.get_capabilities, on x86 and on ARM.
CPU_INSTRUCTIONS = {
    Precision.bf16: ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"),
    Precision.fp16: ("amx_fp16", "avx512_fp16", "fp16_arith"),
}


def slow_precision(precision: Precision, device: torch.device) -> str | None:
    """Why a precision is no faster than fp32 on this device, or None where nothing is known against it."""
    if precision is Precision.fp32:
        return None
    if device.type == "cpu":
        there = torch.cpu.get_capabilities()
        if not any(there.get(name, False) for name in CPU_INSTRUCTIONS[precision]):
            return f"trainer.precision={precision.value} will not be faster than fp32: this CPU has no instructions for it"
    if device.type == "cuda" and precision is Precision.bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "trainer.precision=bf16 will not be faster than fp32: this card emulates it; fp16 is native"
    return None


def device_name(device: torch.device, config: DeviceConfig) -> str:
    if config.kind is DeviceKind.virtual:
        return f"virtual card of {config.capacity_mib} MiB"
    if device.type in ("cuda", "xpu"):
        return str(getattr(torch, device.type).get_device_name(device))
    return device.type
