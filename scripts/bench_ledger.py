"""What following an operation costs on a virtual card: microseconds, medians of interleaved repetitions.

.venv/bin/python scripts/bench_ledger.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tft_exp.memory.virtual import VirtualMemory

OPERATIONS: dict[str, Callable[[Tensor], object]] = {"in place": lambda x: x.add_(1), "with a new tensor": lambda x: x + 1}
CALLS, REPETITIONS = 2000, 21


def microseconds(operation: Callable[[Tensor], object]) -> float:
    """Of one call on a tensor so small that its arithmetic takes no time."""
    tensor = torch.ones(8)
    began = time.perf_counter()
    for _ in range(CALLS):
        operation(tensor)
    return (time.perf_counter() - began) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    memory = VirtualMemory(4096, 450)
    for name, operation in OPERATIONS.items():
        plain, followed = [], []
        for _ in range(REPETITIONS):
            plain.append(microseconds(operation))
            with memory.attach():
                followed.append(microseconds(operation))
        one, other = statistics.median(plain), statistics.median(followed)
        print(f"an operation {name}: {one:.1f} us plain, {other:.1f} us followed, {other - one:+.1f}")


if __name__ == "__main__":
    main()
