"""What a card's libraries take beside tensors, on a virtual card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tft_exp.memory.kernels import KernelMemory
from tft_exp.memory.virtual import VirtualMemory

MIB = 2**20
KERNELS = KernelMemory(cublas_workspace=8 * MIB, lstm_reserve=5.0)


def workspace_mib(memory: VirtualMemory) -> float:
    return (memory.now().makeup or {})["kernel workspace"]


def test_each_thread_that_multiplies_keeps_a_workspace() -> None:
    memory = VirtualMemory(4096, 450, kernels=KERNELS)
    with memory.attach():
        weight = torch.ones(8, 8, requires_grad=True)
        rows = torch.ones(8, 8)
        assert workspace_mib(memory) == 0
        product = rows @ weight
        assert workspace_mib(memory) == 8
        product.sum().backward()
        assert workspace_mib(memory) == 16, "the backward pass has a thread of its own"
        (rows @ weight).sum().backward()
        memory.clear_cache()
        assert workspace_mib(memory) == 16
        assert memory.now().allocated_mib > 16


def test_products_on_the_host_take_none() -> None:
    memory = VirtualMemory(4096, 450, kernels=KERNELS)
    with memory.attach():
        rows = memory.fetch(torch.ones(8, 8))
        rows @ rows
        assert workspace_mib(memory) == 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="an LSTM is one operation with oneDNN alone")
@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_keeps_its_reserve_from_forward_to_backward(layers: int) -> None:
    steps, windows, hidden = 20, 16, 32
    cells = steps * windows * hidden
    held = {}
    for reserve in (0.0, 5.0):
        memory = VirtualMemory(4096, 450, kernels=KernelMemory(0, reserve))
        with memory.attach():
            lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
            rows = torch.ones(windows, steps, hidden)
            output = lstm(rows)[0]
            held[reserve] = memory.ledger.accounts[memory.ledger.place_of(rows)].total  # type: ignore[index]
            lstm.eval()
            with torch.no_grad():
                before = memory.now().allocated_mib
                again = lstm(rows)[0]
                assert memory.now().allocated_mib - before < 3 * cells * 4 / MIB, "an evaluation keeps none"
            output.sum().backward()
            del output, again
    assert held[5.0] - held[0.0] == 5 * layers * cells * 4
