"""What each policy, optimizer, way with gradients and way with activations costs: seconds a step and around validation, and MiB.

    .venv/bin/python scripts/bench/bench_policies.py                       # on a virtual card, which any machine has
    .venv/bin/python scripts/bench/bench_policies.py device=cuda model=large

Overrides are those of `tft-exp train`. In every round each choice is trained for two short epochs, of which the second counts, in
turns with the others; its ratio is to `keep` with AdamW in the same round. MiB are what tensors take at the phase's peak: exact
on a virtual card and on CUDA; a virtual card's seconds are this CPU's, and those that following each operation takes.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from drawing import draw_policies
from programs import write_json

from tft_exp.compose import compose_config
from tft_exp.config import Config
from tft_exp.data.dataset import Dataset, load_dataset
from tft_exp.hardware import device_name, open_device_memory, resolve_device
from tft_exp.memory.timeline import Timeline
from tft_exp.training.assembly import assemble
from tft_exp.training.trainer import EpochResult

FIGURES = Path(__file__).resolve().parent.parent / "figures"
NO_CLIP = "trainer.gradient_clip_norm=null"
BASELINE = "keep, adamw"
CHOICES: dict[str, list[str]] = {
    BASELINE: [],
    **{
        f"policy={name}": [f"policy={name}"]
        for name in ("clear_cache_every_batch", "recreate", "offload", "offload_always", "cpu_validation")
    },
    **{f"optimizer={name}": [f"optimizer={name}"] for name in ("sgd_momentum", "adamw_bf16", "adafactor", "muon")},
    "gradients=in_backward": ["gradients=in_backward", NO_CLIP],
    **{f"model.activations={name}": [f"model.activations={name}"] for name in ("stream", "recompute", "offload")},
}
LINES = ("step seconds", "around validation seconds", "validation seconds", "train peak_mib", "validation peak_mib", "train host_mib")
# choice -> line -> one value a round
Results = dict[str, dict[str, list[float]]]


def second_epoch(config: Config, dataset: Dataset) -> EpochResult:
    """Of a fresh run, whose first epoch warms up."""
    memory = open_device_memory(config.device, resolve_device(config.device))
    with memory.attach():
        assembled = assemble(config, dataset.rows, dataset.sizes, Timeline(memory))
        return list(assembled.trainer.epochs(assembled.rows.gather, assembled.train, assembled.validation))[-1]


def figures(result: EpochResult, steps: int) -> dict[str, float]:
    train, validation = result.phase("train"), result.phase("validation")
    return {
        "step seconds": train.seconds / steps,
        "around validation seconds": result.policy_seconds,
        "validation seconds": validation.seconds,
        "train peak_mib": train.peak.allocated_mib,
        "validation peak_mib": validation.peak.allocated_mib,
        "train host_mib": train.peak.host_mib or 0.0,
    }


def report(results: Results) -> None:
    print(f"{'':<32}" + "".join(f"{line:>28}" for line in LINES))
    for name, found in results.items():
        cells = [statistics.median(found[line]) for line in LINES]
        print(f"{name:<32}" + "".join(f"{cell:>28,.3f}" for cell in cells))
    print(f"\nseconds of a step, times those of {BASELINE} in the same round: median [least, most]")
    for name, found in results.items():
        ratios = [one / base for one, base in zip(found["step seconds"], results[BASELINE]["step seconds"], strict=True)]
        print(f"  {name:<32}{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--json", type=Path, default=FIGURES / "bench_policies.json")
    parser.add_argument("--png", type=Path, default=FIGURES / "bench_policies.png")
    parser.add_argument("overrides", nargs="*", help="of tft-exp train")
    options = parser.parse_args()
    limits = [f"trainer.limit_train_batches={options.steps}", "trainer.limit_validation_batches=2", "trainer.max_epochs=2"]
    common = ["device=virtual_24gb", *limits, *options.overrides]
    configs = {name: compose_config([*common, *own]) for name, own in CHOICES.items()}
    config = configs[BASELINE]
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    results: Results = {name: {line: [] for line in LINES} for name in CHOICES}
    for number in range(options.rounds):
        for name, own in configs.items():
            for line, value in figures(second_epoch(own, dataset), options.steps).items():
                results[name][line].append(value)
        print(f"round {number + 1} of {options.rounds}", flush=True)
    about = f"{device_name(resolve_device(config.device), config.device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"\n{about}; {' '.join(common)}\n")
    report(results)
    write_json(options.json, {"about": about, "overrides": common, "rounds": options.rounds, "steps": options.steps, "results": results})
    draw_policies(options.png, results, BASELINE)


if __name__ == "__main__":
    main()
