"""Memory figures against allocations of known size, on the real device."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from tft_exp.memory.devices import MIB, ProcessMemory, Sampler, is_out_of_memory, keep_freed_memory, open_memory

BLOCK_MIB = 160


def block(mib: int = BLOCK_MIB, device: str = "cpu") -> torch.Tensor:
    # ones, not empty: a page counts as resident only when it has been written.
    return torch.ones(mib * MIB // 4, device=device)


def test_process_memory_sees_a_block_come_and_go() -> None:
    memory = ProcessMemory()
    memory.settle()
    before = memory.now().allocated_mib
    held = block()
    assert memory.now().allocated_mib - before == pytest.approx(BLOCK_MIB, abs=8)
    del held
    memory.clear_cache()
    assert memory.now().allocated_mib - before == pytest.approx(0, abs=8)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")
def test_peak_is_of_the_interval_since_its_reset() -> None:
    memory = ProcessMemory()
    assert "high-water mark" in memory.source
    keep_freed_memory()  # as every run does
    memory.reset_peak()
    before = memory.now().allocated_mib
    held = block()
    del held
    assert memory.peak().allocated_mib - before == pytest.approx(BLOCK_MIB, abs=8)
    memory.reset_peak()
    assert memory.peak().allocated_mib - memory.now().allocated_mib == pytest.approx(0, abs=8)


def test_cpu_gives_no_figure_that_it_does_not_have() -> None:
    reading = open_memory(torch.device("cpu")).now()
    assert reading.reserved_mib is None
    assert reading.driver_mib is None


def test_sampler_keeps_the_highest_value_it_saw() -> None:
    value = [10]
    sampler = Sampler(lambda: value[0], 0.001)
    value[0] = 50
    deadline = time.monotonic() + 5
    while sampler._highest < 50 and time.monotonic() < deadline:
        time.sleep(0.001)
    value[0] = 20
    assert sampler.highest() == 50
    sampler.reset()
    assert sampler.highest() == 20


def test_a_real_cpu_out_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_other_errors_are_not_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_cuda_figures_and_capacity() -> None:
    device = torch.device("cuda", 0)
    memory = open_memory(device, capacity_mib=2048, context_mib=450)
    before = memory.now().allocated_mib
    memory.reset_peak()
    held = block(device="cuda")
    assert memory.now().allocated_mib - before == pytest.approx(BLOCK_MIB, abs=2)
    reading = memory.now()
    assert reading.reserved_mib is not None
    assert reading.reserved_mib >= reading.allocated_mib
    assert reading.driver_mib is not None
    assert reading.driver_mib >= reading.reserved_mib
    del held
    assert memory.peak().allocated_mib - before == pytest.approx(BLOCK_MIB, abs=2)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(1700, device="cuda")
    assert is_out_of_memory(caught.value)
    torch.cuda.set_per_process_memory_fraction(1.0)
