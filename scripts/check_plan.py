"""Plans against runs on a virtual card: live bytes by phase, and whether what a plan calls `fits` does.

    .venv/bin/python scripts/check_plan.py --models tiny base --sample 20
    .venv/bin/python scripts/check_plan.py                                  # every model, policy and optimizer
    .venv/bin/python scripts/check_plan.py trainer.precision=bf16 --models base --policies keep offload

Each combination is planned, then run on the smallest card of which the plan says that it fits: three epochs of five steps and
three validation batches, where a rehearsal takes two of each. Prints what differs, the largest error, and how many that were
called `fits` ran out of memory.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from tft_exp.compose import compose_config, options_of
from tft_exp.config import Config
from tft_exp.data.dataset import Dataset, load_dataset
from tft_exp.errors import ConfigError
from tft_exp.hardware import kernel_memory
from tft_exp.memory.devices import MIB, is_out_of_memory
from tft_exp.memory.timeline import Timeline
from tft_exp.memory.virtual import VirtualMemory
from tft_exp.planning.layout import NO_LIMIT, judge, lay_out
from tft_exp.planning.plan import CardSpeed, Plan, Verdict
from tft_exp.planning.rehearsal import Rehearsal, rehearse
from tft_exp.planning.shape import shape_of
from tft_exp.training.assembly import assemble

# Sizes alone decide about memory, so that a small batch of a large model says as much as a large one.
SHORT = [
    "batch.train=4",
    "batch.validation=8",
    "trainer.max_epochs=3",
    "trainer.limit_train_batches=5",
    "trainer.limit_validation_batches=3",
]


@dataclass(frozen=True)
class Check:
    """One combination: the largest difference of live bytes by phase in percent, and the phase in which it ran out of memory on
    the smallest card that the plan allows."""

    name: str
    error_percent: float
    phase: str
    out_of_memory_in: str | None
    least_mib: int
    plan_seconds: float
    run_seconds: float


def check(name: str, config: Config, dataset: Dataset) -> Check:
    """Plan and run."""
    shape = shape_of(dataset)
    began = time.perf_counter()
    rehearsal = rehearse(config, shape)
    planned = time.perf_counter() - began
    least = least_card_mib(rehearsal)
    context = config.device.context_mib
    device = replace(config.device, capacity_mib=least + context)
    plan = lay_out(rehearsal, replace(config, device=device), shape, CardSpeed())
    began = time.perf_counter()
    peaks, failed = run(config, dataset, VirtualMemory(least + context, context, kernels=kernel_memory(config.device)))
    error, phase = worst(plan, peaks)
    return Check(name, error, phase, failed, least, planned, time.perf_counter() - began)


def least_card_mib(rehearsal: Rehearsal) -> int:
    """The smallest that a plan calls enough, whole MiB, by bisection: `fits` need not rise with size, but this one fits."""

    def fits(mib: int) -> bool:
        return judge(rehearsal, mib * MIB)[0] is Verdict.fits

    free = judge(rehearsal, NO_LIMIT)[1].peaks
    low, high = max(peak.allocated for peak in free) // MIB, -(-max(peak.reserved for peak in free) // MIB)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high


def run(config: Config, dataset: Dataset, memory: VirtualMemory) -> tuple[dict[str, float], str | None]:
    """The highest live MiB by phase of a run, and the phase in which its memory ran out."""
    timeline, failed = Timeline(memory), None
    try:
        with memory.attach():
            assembled = assemble(config, dataset.rows, dataset.sizes, timeline)
            list(assembled.trainer.epochs(assembled.rows.gather, assembled.train, assembled.validation))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failed = timeline.interrupted.phase if timeline.interrupted else "between phases"
    peaks: dict[str, float] = {}
    for record in timeline.records:
        peaks[record.phase] = max(peaks.get(record.phase, 0.0), sum((record.peak.makeup or {}).values()))
    return peaks, failed


def worst(plan: Plan, peaks: dict[str, float]) -> tuple[float, str]:
    """The largest difference of plan to run, in percent of the run, and its phase."""
    planned = {phase: plan.of_run_phase(phase) for phase in peaks}
    return max((abs((peak.live_mib if peak else 0.0) / peaks[phase] - 1) * 100, phase) for phase, peak in planned.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=options_of("model"))
    parser.add_argument("--policies", nargs="+", default=options_of("policy"))
    parser.add_argument("--optimizers", nargs="+", default=options_of("optimizer"))
    parser.add_argument("--gradients", nargs="+", default=["after_step"])
    parser.add_argument("--sample", type=int, help="so many combinations, drawn with seed 0")
    parser.add_argument("--json", type=Path, help="also write every check into this file")
    parser.add_argument("overrides", nargs="*", help="of tft-exp train, as key=value", default=[])
    chosen = parser.parse_args()
    combinations = list(product(chosen.models, chosen.policies, chosen.optimizers, chosen.gradients))
    if chosen.sample is not None:
        combinations = random.Random(0).sample(combinations, min(chosen.sample, len(combinations)))
    checks, refused = [], 0
    for model, policy, optimizer, gradients in combinations:
        features = "ohlcv_225" if model == "foxhunt" else "ohlcv"
        overrides = [f"model={model}", f"policy={policy}", f"optimizer={optimizer}", f"gradients={gradients}", f"features={features}"]
        if gradients == "in_backward":
            overrides.append("trainer.gradient_clip_norm=null")
        try:
            config = compose_config(["device=virtual_24gb", *SHORT, *overrides, *chosen.overrides])
            dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
            found = check("-".join((model, policy, optimizer, gradients)), config, dataset)
        except ConfigError as error:
            refused += 1
            print(f"refused: {' '.join(overrides)}: {error.what}", file=sys.stderr)
            continue
        checks.append(found)
        print(
            f"{found.name:<50} error {found.error_percent:8.4f} % ({found.phase}), least card {found.least_mib:6,} MiB, "
            f"{'out of memory in ' + found.out_of_memory_in if found.out_of_memory_in else 'fits'}, "
            f"plan {found.plan_seconds:.1f} s, run {found.run_seconds:.1f} s",
            flush=True,
        )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([vars(found) for found in checks], indent=1))
    errors = sorted(found.error_percent for found in checks)
    under = sum(found.out_of_memory_in is not None for found in checks)
    print(
        f"\n{len(checks)} combinations ({refused} refused): largest error {errors[-1]:.4f} %, median {errors[len(errors) // 2]:.4f} %; "
        f"out of memory on the smallest card that the plan calls enough: {under}"
    )


if __name__ == "__main__":
    main()
