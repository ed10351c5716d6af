"""What is known of a device before anything runs on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tft_exp.config import Precision
from tft_exp.hardware import slow_precision

CPU = torch.device("cpu")
CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(
    "flags" not in (CPUINFO.read_text() if CPUINFO.exists() else ""), reason="needs Linux on x86, where the kernel lists instructions"
)
def test_a_precision_that_the_cpu_has_no_instructions_for_is_said_to_be_slow() -> None:
    flags = set(CPUINFO.read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    for precision, instructions in ((Precision.bf16, {"avx512_bf16", "amx_bf16"}), (Precision.fp16, {"avx512_fp16", "amx_fp16"})):
        reason = slow_precision(precision, CPU)
        if flags & instructions:
            assert reason is None
        else:
            assert reason is not None
            assert f"trainer.precision={precision.value}" in reason


def test_float32_is_never_said_to_be_slow() -> None:
    assert slow_precision(Precision.fp32, CPU) is None
