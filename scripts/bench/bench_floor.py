"""What a training step and a forecast would take at this machine's ceilings, beside what they take.

    .venv/bin/python scripts/bench/bench_floor.py
    .venv/bin/python scripts/bench/bench_floor.py --known 10 --observed 214      # the inputs of foxhunt

The operations of matrix products and the bytes that all operations read and write are counted by the plan's rehearsal, operation by
operation. Ceilings are measured here: float32 products of 1,024 x 1,024, and a multiplication out of place of 64 MiB (main memory) and
of 64 KiB a thread (a core's cache). No step is faster than its products at their ceiling; traffic at the cache's ceiling is what the
same operations could take if none ever waited for memory, at main memory's what they take without a cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from job import Job
from panels import synthetic
from worker_tft_exp import overrides_of

from tft_exp.compose import compose_config
from tft_exp.data.dataset import load_dataset
from tft_exp.hardware import open_device_memory, resolve_device
from tft_exp.memory.ledger import Place
from tft_exp.memory.timeline import Timeline
from tft_exp.planning.plan import LATER
from tft_exp.planning.rehearsal import rehearse
from tft_exp.planning.shape import shape_of
from tft_exp.training.assembly import assemble

VARIANTS = {
    "independent windows": [],
    "runs of 4, a horizon apart": ["batch.run_length=4", "batch.run_stride=10"],
    "runs of 16, consecutive": ["batch.run_length=16"],
    "independent, activations kept": ["model.activations=keep"],
}


def seconds_of(work: Callable[[], object], repetitions: int) -> float:
    """Median seconds of one call, after one that warms up."""
    found = []
    for _ in range(repetitions + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def ceilings() -> dict[str, float]:
    """Operations and bytes a second."""
    square = torch.randn(1024, 1024)
    product = torch.empty_like(square)
    products = 2 * 1024**3 / seconds_of(lambda: torch.mm(square, square, out=product), 20)

    def traffic(elements: int, calls: int) -> float:
        read, written = torch.randn(elements), torch.empty(elements)

        def work() -> None:
            for _ in range(calls):
                torch.mul(read, 2.0, out=written)

        return calls * 2 * 4 * elements / seconds_of(work, 20)

    return {"products": products, "memory": traffic(1 << 24, 1), "cache": traffic(torch.get_num_threads() << 14, 1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--known", type=int, default=4)
    parser.add_argument("--observed", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        panel = synthetic(Path(folder), entities=8, steps=1000, known=options.known, observed=options.observed)
        job = Job("measure", panel, hidden=options.hidden, started=0.0)
        # Before the ceilings: they are measured with memory kept as a run keeps it.
        configs = {
            name: compose_config([*overrides_of(job), *own, "data.cache=null", f"trainer.limit_train_batches={options.steps}"])
            for name, own in VARIANTS.items()
        }
        config = configs["independent windows"]
        memory = open_device_memory(config.device, resolve_device(config.device))
        dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
        most = ceilings()
        print(
            f"{options.threads} threads: {most['products'] / 1e9:,.0f} GFLOP/s of products, "
            f"{most['memory'] / 1e9:,.1f} GB/s to main memory, {most['cache'] / 1e9:,.1f} GB/s in cache\n"
        )
        heads = ("GFLOP", "GB", "ms: products", "traffic in cache", "in memory", "measured", "products' share")
        print(f"{'a training step of 64 windows':<32}" + "".join(f"{head:>18}" for head in heads))
        for name, config in configs.items():
            work = rehearse(config, shape_of(dataset)).work[LATER]
            flops, nbytes = work.flops[Place.card], work.bytes[Place.card]
            assembled = assemble(config, dataset.rows, dataset.sizes, Timeline(memory))
            ends: list[float] = []
            assembled.trainer.on_batch = lambda phase, ends=ends: ends.append(time.perf_counter())  # type: ignore[misc]
            assembled.trainer.train(assembled.rows.gather, assembled.train, total_steps=options.steps)
            step = statistics.median(after - before for before, after in pairwise(ends))
            floor = flops / most["products"]
            times = [1e3 * seconds for seconds in (floor, nbytes / most["cache"], nbytes / most["memory"], step)]
            cells = [f"{flops / 1e9:,.2f}", f"{nbytes / 1e9:,.2f}", *(f"{value:,.1f}" for value in times), f"{floor / step:.0%}"]
            print(f"{name:<32}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
