"""How cost grows: rows ten times as many at each step, parameters four times, lookback two times.

    .venv/bin/python scripts/bench/bench_scale.py
    .venv/bin/python scripts/bench/bench_scale.py device=cuda --rows 1e5 1e6 1e7

Every place of a scale is measured --rounds times in a process of its own, in turns with the others. `data s` reads, checks and
scales a Parquet file, without a cache; `first step s` lasts from the start of the process to the end of its first training step;
`step ms` is the median of --steps steps (AdamW, batch 64), `peak MiB` the device's peak (on a CPU the process's).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from drawing import draw_scale
from job import ENTITY, TARGET, TIME
from panels import synthetic
from programs import spread, write_json

FIGURES = Path(__file__).resolve().parent.parent / "figures"
LINES = ("data s", "first step s", "step ms", "peak MiB")


def measure(overrides: list[str], steps: int, started: float) -> dict[str, float]:
    """In the process of one place: its figures, and the model's parameters."""
    from tft_exp.compose import compose_config
    from tft_exp.data.dataset import load_dataset
    from tft_exp.hardware import open_device_memory, resolve_device
    from tft_exp.memory.timeline import Timeline
    from tft_exp.training.assembly import assemble

    config = compose_config([*overrides, f"trainer.limit_train_batches={steps}"])
    began = time.time()
    dataset = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    data_seconds = time.time() - began
    timeline = Timeline(open_device_memory(config.device, resolve_device(config.device)))
    assembled = assemble(config, dataset.rows, dataset.sizes, timeline)
    ends: list[float] = []

    def on_batch(phase: str) -> None:
        timeline.memory.synchronize()
        ends.append(time.time())

    assembled.trainer.on_batch = on_batch
    with timeline.phase("train"):
        assembled.trainer.train(assembled.rows.gather, assembled.train, total_steps=steps)
    seconds = [after - before for before, after in pairwise(ends)]
    return {
        "data s": data_seconds,
        "first step s": ends[0] - started,
        "step ms": 1e3 * statistics.median(seconds),
        "peak MiB": timeline.records[-1].peak.allocated_mib,
        "parameters": sum(parameter.numel() for parameter in assembled.trainer.model.parameters()),
    }


def in_a_process(overrides: list[str], steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", json.dumps({"overrides": overrides, "steps": steps, "started": time.time()})]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(overrides)} failed:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def places(options: argparse.Namespace, folder: Path) -> dict[str, dict[float, list[str]]]:
    """scale -> place -> overrides. The place of a size of the hidden layer becomes its parameters later."""

    def overrides(rows: int, hidden: int, lookback: int) -> list[str]:
        path = folder / f"synthetic_{options.entities}_{rows // options.entities}.parquet"
        panel = None if path.exists() else synthetic(folder, entities=options.entities, steps=rows // options.entities)
        known, observed = (
            (panel.known, panel.observed) if panel else ([f"known_{n}" for n in range(4)], [f"observed_{n}" for n in range(10)])
        )
        data = ["data=table", "features=none", f"data.path='{path}'", f"data.time={TIME}", f"data.entities=[{ENTITY}]", "data.cache=null"]
        roles = [f"data.target={TARGET}", f"data.known_real=[{','.join(known)}]", f"data.observed_real=[{','.join(observed)}]"]
        shape = ["model=base", f"model.hidden_size={hidden}", f"model.lookback={lookback}", "batch=b64"]
        return [*data, *roles, *shape, "device=cpu", *options.overrides]

    first = int(options.rows[0])
    return {
        "rows": {rows: overrides(int(rows), 64, 60) for rows in options.rows},
        "hidden size": {hidden: overrides(first, hidden, 60) for hidden in options.hidden},
        "lookback": {lookback: overrides(first, 64, lookback) for lookback in options.lookback},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--entities", type=int, default=10)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e4, 1e5, 1e6, 1e7])
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 32, 64, 128], help="twice the size is some four times the parameters")
    parser.add_argument("--lookback", type=int, nargs="+", default=[30, 60, 120, 240])
    parser.add_argument("--json", type=Path, default=FIGURES / "bench_scale.json")
    parser.add_argument("--png", type=Path, default=FIGURES / "bench_scale.png")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="of tft-exp train")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(**json.loads(options.one))))
        return
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scales = places(options, Path(folder))
        for number in range(options.rounds):
            for scale, of_scale in scales.items():
                found = [in_a_process(overrides, options.steps) for overrides in of_scale.values()]
                as_parameters = scale == "hidden size"
                of = results.setdefault("parameters" if as_parameters else scale, {line: [[] for _ in found] for line in LINES})
                of["at"] = [one["parameters"] for one in found] if as_parameters else list(of_scale)
                for place, one in enumerate(found):
                    for line in LINES:
                        of[line][place].append(one[line])
            print(f"round {number + 1} of {options.rounds}", flush=True)
    about = f"{torch.get_num_threads()} threads, torch {torch.__version__}; {' '.join(options.overrides)}".rstrip("; ")
    print(about)
    for scale, found_of in results.items():
        print(f"\n{scale:>14}" + "".join(f"{line:>28}" for line in LINES))
        for place, at in enumerate(found_of["at"]):
            print(f"{at:>14,.0f}" + "".join(f"{spread(found_of[line][place], ',.1f'):>28}" for line in LINES))
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "png", "one")}
    write_json(options.json, {"about": about, "settings": settings, "results": results})
    draw_scale(options.png, results, LINES)


if __name__ == "__main__":
    main()
