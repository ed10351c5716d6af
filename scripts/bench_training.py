"""How fast a configuration gathers, trains and validates here: windows a second, medians over repetitions.

    .venv/bin/python scripts/bench_training.py model=base batch=b64 device=cpu
    .venv/bin/python scripts/bench_training.py --vs "trainer.precision=bf16" model=base

Overrides are those of `tft-exp train`. With --vs a second configuration, the first with these overrides added, is
measured in turn with it, pair by pair, so that a machine whose speed drifts does not decide the comparison.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from tft_exp.compose import compose_config
from tft_exp.data.dataset import load_dataset
from tft_exp.hardware import open_device_memory, resolve_device
from tft_exp.memory.timeline import Timeline
from tft_exp.training.assembly import assemble


class Bench:
    """One configuration, ready to run; each measure returns windows a second."""

    def __init__(self, overrides: list[str]) -> None:
        config = compose_config(["trainer.limit_train_batches=8", *overrides])
        self.config = config
        self.device = resolve_device(config.device)
        dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
        assembled = assemble(config, dataset.rows, dataset.sizes, Timeline(open_device_memory(config.device, self.device)))
        self.trainer, self.rows = assembled.trainer, assembled.rows
        self.train_source, self.validation = assembled.train, assembled.validation

    def rate(self, work: Callable[[], int]) -> float:
        memory = self.trainer.timeline.memory
        memory.synchronize()
        began = time.perf_counter()
        windows = work()
        memory.synchronize()
        return windows / (time.perf_counter() - began)

    def gather(self) -> float:
        def work() -> int:
            for part in drawn.parts(self.config.batch.train):
                self.rows.gather(part)
            return drawn.count

        drawn = self.train_source.draw(torch.Generator().manual_seed(0), 50 * self.config.batch.train)
        return self.rate(work)

    def train(self) -> float:
        def work() -> int:
            losses = self.trainer.train(self.rows.gather, self.train_source, total_steps=1_000_000)
            return min(len(losses) * self.config.batch.train, len(self.train_source))

        return self.rate(work)

    def validate(self) -> float:
        runs = next(self.validation[0].parts(2 * self.config.batch.validation))

        def work() -> int:
            self.trainer.evaluate(self.rows.gather, [runs], lambda tensor: tensor)
            return runs.count

        return self.rate(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vs", default=None, help="overrides of a second configuration, separated by spaces")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    benches = {"first": Bench(options.overrides)}
    if options.vs is not None:
        benches["second"] = Bench([*options.overrides, *options.vs.split()])
    measures = ("gather", "train", "validate")
    rates: dict[str, dict[str, list[float]]] = {name: {measure: [] for measure in measures} for name in benches}
    for repetition in range(options.repetitions + 1):
        for name, bench in benches.items():
            for measure in measures:
                rate = getattr(bench, measure)()
                if repetition > 0:  # the first one warms up
                    rates[name][measure].append(rate)
    print(
        f"{benches['first'].device}, {torch.get_num_threads()} threads, torch {torch.__version__}: windows a second, median [least, most]"
    )
    for measure in measures:
        for name in benches:
            values = rates[name][measure]
            print(f"{measure:<9} {name:<7} {statistics.median(values):12,.0f}  [{min(values):,.0f}, {max(values):,.0f}]")
        if "second" in benches:
            ratios = [two / one for one, two in zip(rates["first"][measure], rates["second"][measure], strict=True)]
            print(f"{measure:<9} second / first, pair by pair {statistics.median(ratios):.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]")
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
