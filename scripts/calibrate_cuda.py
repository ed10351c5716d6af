"""What a CUDA card's libraries take and how fast it is, measured: a small file that `tft-exp plan` and `advise` read.

    .venv/bin/python scripts/calibrate_cuda.py my_card.json
    tft-exp plan --calibration my_card.json device=cuda_4gb policy=keep,recreate

To be run alone on the card: what other processes hold would count as the context. Some ten seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tft_exp.compose import compose_config
from tft_exp.data.dataset import load_dataset
from tft_exp.hardware import open_device_memory
from tft_exp.memory.devices import MIB
from tft_exp.memory.timeline import Timeline
from tft_exp.training.assembly import assemble

# Steps, windows, hidden units and layers of the LSTMs that are measured.
LSTMS = ((60, 64, 64, 1), (60, 64, 256, 1), (168, 64, 160, 1), (60, 64, 256, 2), (252, 16, 160, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--index", type=int, default=0, help="which card, of several")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("a calibration needs a CUDA card, and this torch sees none")
    device = torch.device("cuda", options.index)
    torch.cuda.set_device(device)
    forward, backward = cublas_workspaces(device)
    reserves = [lstm_reserve(device, *shape) for shape in LSTMS]
    context = context_mib(device)
    content = {
        "card": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "device": {
            "context_mib": round(context),
            "cublas_workspace_kib": round(max(forward, backward) / 1024),
            "lstm_reserve": round(max(reserves), 4),
        },
        "speed": speeds(device),
        "measured": {
            "cublas_workspace_bytes": {"forward": forward, "backward": backward},
            "lstm_reserve": {"x".join(map(str, shape)): reserve for shape, reserve in zip(LSTMS, reserves, strict=True)},
        },
    }
    options.file.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


def cublas_workspaces(device: torch.device) -> tuple[int, int]:
    """Bytes that the first product takes and keeps, in the forward and in the backward pass."""
    weight = torch.ones(512, 512, device=device, requires_grad=True)
    rows = torch.ones(512, 512, device=device)
    before = torch.cuda.memory_allocated(device)
    product = rows @ weight
    loss = product.sum()
    forward = torch.cuda.memory_allocated(device) - before - product.untyped_storage().nbytes() - 512
    before = torch.cuda.memory_allocated(device)
    loss.backward()
    assert weight.grad is not None
    return forward, torch.cuda.memory_allocated(device) - before - weight.grad.untyped_storage().nbytes()


def lstm_reserve(device: torch.device, steps: int, windows: int, hidden: int, layers: int) -> float:
    """Elements that cuDNN keeps for the backward pass a layer, step, window and hidden unit, without the outputs of the layers
    between, which a plan counts as the tensors that they are on a CPU."""
    lstm = nn.LSTM(hidden, hidden, layers, batch_first=True).to(device)
    rows = torch.ones(windows, steps, hidden, device=device)
    for _ in range(2):  # the first pass also takes workspaces that stay
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        output, (state, cell) = lstm(rows)
        kept = torch.cuda.memory_allocated(device) - before
        kept -= sum(tensor.untyped_storage().nbytes() for tensor in (output, state, cell))
        del output, state, cell
    cells = steps * windows * hidden
    return kept / 4 / cells / layers - (layers - 1) / layers


def context_mib(device: torch.device) -> float:
    """What the driver has given out beyond the allocator's segments, once a model has been trained and its kernels are loaded."""
    config = compose_config(["device=cuda", f"device.index={device.index}", "model=base", "trainer=quick", "trainer.max_epochs=1"])
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    assembled = assemble(config, dataset.rows, dataset.sizes, Timeline(open_device_memory(config.device, device)))
    list(assembled.trainer.epochs(assembled.rows.gather, assembled.train, [next(assembled.validation[0].parts(config.batch.validation))]))
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return (total - free - torch.cuda.memory_reserved(device)) / MIB


def speeds(device: torch.device) -> dict[str, float]:
    """Bytes and operations a second, medians of several repetitions."""
    size = 256 * MIB
    one, other = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    plain, copied = (torch.zeros(size, dtype=torch.uint8) for _ in range(2))
    matrix = torch.ones(4096, 4096, device=device)

    def seconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(6):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            work()
            torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])

    return {
        "memory_gb_per_second": 2 * size / seconds(lambda: other.copy_(one)) / 1e9,
        "tflops": 2 * 4096**3 / seconds(lambda: matrix @ matrix) / 1e12,
        "link_gb_per_second": size / seconds(lambda: one.copy_(pinned)) / 1e9,
        "host_gb_per_second": 2 * size / seconds(lambda: copied.copy_(plain)) / 1e9,
    }


if __name__ == "__main__":
    main()
