"""How soon a user has the quality: wall seconds until the validation quantile loss reaches the best that the best peer reaches.

    python scripts/bench/bench_race.py --data FOLDER       # with ETTh1.csv and us_equities_daily_30.parquet

Every program trains on the same rows, split in time alike, with its own loader and loop, at the same batch size and
constant learning rate (Adam without decay or clipping), and is evaluated on the same validation windows by the same loss:
the pinball loss of its forecasts, mean over windows, steps and quantiles, of the target standardised by each entity's
training rows. Seconds are those from the start of the process (imports and data included) and from the first step; the
time that evaluations take is left out of both (the JSON has the seconds with it as well).

A heat is one data set and one hidden size. Its loss to reach is the lowest mean over seeds of a peer's best loss. Programs
are compared by the seconds of their mean curve (the mean over seeds of the lowest loss so far), because there the best peer
reaches its loss by definition; the seconds of each seed stand beside. Ours are held against each peer by itself, too: by
the seconds to that peer's own best loss.

An epoch is --steps-per-epoch steps over windows in random order; 0 makes it a pass over all training windows. Runs go seed
by seed, program by program, in turns; --resume goes on where the JSON of the same settings stops, and takes more data sets,
hidden sizes, seeds and variants to what it has. With --peer-seeds ours run over more seeds than the peers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from drawing import draw_race
from environments import PEERS
from job import Job, Panel
from panels import REAL
from programs import ABOUT, add_options, chosen_programs, print_differences, shapes, write_json

FIGURES = Path(__file__).resolve().parent.parent / "figures"
COLUMNS = ("step", "loss", "since_start", "since_first_step", "since_start_with_evaluations", "since_first_step_with_evaluations")
# What figures of one JSON have in common.
SETTINGS = (
    "threads", "lookback", "horizon", "batch", "continuous",
    "epochs", "steps_per_epoch", "evaluations", "patience", "stride", "learning_rate",
)  # fmt: skip
CLOCKS = {"since_start": "from process start", "since_first_step": "from first step"}
# program -> seed -> column -> one value an evaluation
Curves = dict[str, dict[str, dict[str, list[float]]]]


def job_of(options: argparse.Namespace, panel: Panel, hidden: int, seed: int) -> Job:
    job = Job("race", panel, hidden=hidden, started=0.0, seed=seed, learning_rate=options.learning_rate, **shapes(options))
    steps = options.steps_per_epoch or math.ceil(job.training_windows / options.batch)
    budget = {
        "steps": options.epochs * steps,
        "evaluate_every": max(1, steps // options.evaluations),
        "patience": options.patience * options.evaluations,
        "stride": options.stride or options.horizon,
    }
    return Job(**(vars(job) | budget))


def check_same_windows(name: str, found: dict[str, Any], job: Job, seen: dict[str, float]) -> None:
    """Raises SystemExit where a program was evaluated on other windows or targets than the first one."""
    if found["evaluation_windows"] != job.evaluation_windows:
        raise SystemExit(f"{name} was evaluated on {found['evaluation_windows']} windows, not {job.evaluation_windows}")
    for key in ("target_mean", "target_square"):
        if abs(found[key] - seen.setdefault(key, found[key])) > 1e-3:
            raise SystemExit(f"{name} was evaluated on other targets: {key} {found[key]}, not {seen[key]}")


def seconds_to(target: float, curve: dict[str, list[float]], clock: str) -> float:
    """Of the first evaluation at which the loss is `target` or less; infinite where none is."""
    return next((at for at, loss in zip(curve[clock], curve["loss"], strict=True) if loss <= target), math.inf)


def mean_curve(of_seed: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """Evaluation by evaluation, the mean over seeds of the lowest loss so far, and of the seconds it took.

    A seed that stopped early stays as it was at its end. The best peer's reaches the target by definition.
    """
    curves = list(of_seed.values())
    evaluations = max(len(curve["loss"]) for curve in curves)
    mean: dict[str, list[float]] = {column: [] for column in ("loss", *CLOCKS)}
    for number in range(evaluations):
        mean["loss"].append(statistics.mean(min(curve["loss"][: number + 1]) for curve in curves))
        for clock in CLOCKS:
            mean[clock].append(statistics.mean(curve[clock][min(number, len(curve[clock]) - 1)] for curve in curves))
    return mean


def judge(curves: Curves) -> dict[str, Any]:
    """The loss to reach, who set it, and each program's seconds to it: of each seed, and of the mean curve over seeds."""
    ours, peers = parted(curves)
    best = {name: [min(curve["loss"]) for curve in of_seed.values()] for name, of_seed in curves.items()}
    best_peer = min(peers, key=lambda name: statistics.mean(best[name]))
    target = statistics.mean(best[best_peer])
    by_seed = {
        clock: {name: [seconds_to(target, curve, clock) for curve in of_seed.values()] for name, of_seed in curves.items()}
        for clock in CLOCKS
    }
    means = {name: mean_curve(of_seed) for name, of_seed in curves.items()}
    of_mean = {clock: {name: seconds_to(target, mean, clock) for name, mean in means.items()} for clock in CLOCKS}
    to_own = {peer: {name: seconds_to(means[peer]["loss"][-1], means[name], "since_start") for name in (peer, *ours)} for peer in peers}
    found = {"best peer": best_peer, "target": target, "best": best, "by seed": by_seed, "of mean": of_mean}
    return found | {"to a peer's own best": to_own, "curves": curves}


def seconds_text(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:,.1f}"


def parted(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Ours and the peers."""
    ours, peers = ([name for name in names if (name in PEERS) is theirs] for theirs in (False, True))
    return ours, peers


def report(title: str, heat: dict[str, Any]) -> None:
    ours, peers = parted(heat["curves"])
    print(f"\n{title}: seconds to a loss of {heat['target']:.4f}, the mean best one of {heat['best peer']}")
    width = max(map(len, heat["best"]))
    heads = "".join(f"{f'{words}: mean curve, by seed':<44}" for words in CLOCKS.values())
    print(f"  {'':<{width}}  {'best loss, mean [least, most]':<32}{heads}")
    for name, best in heat["best"].items():
        cells = f"{statistics.mean(best):.4f} [{min(best):.4f}, {max(best):.4f}]"
        line = f"  {name:<{width}}  {cells:<32}"
        for clock in CLOCKS:
            by_seed = ", ".join(map(seconds_text, heat["by seed"][clock][name]))
            cell = f"{seconds_text(heat['of mean'][clock][name])} ({by_seed})"
            line += f"{cell:<44}"
        print(line)
    for clock, words in CLOCKS.items():
        seconds = heat["of mean"][clock]
        fastest = min(peers, key=lambda peer: seconds[peer])
        for name in ours:
            if math.isfinite(seconds[name]):
                print(f"  {words}, {name} is {seconds[fastest] / seconds[name]:.2f} times as fast as {fastest}, the fastest peer")
    for peer, reached in heat["to a peer's own best"].items():
        told = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in reached.items())
        print(f"  seconds from process start to the best loss of {peer}: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder with ETTh1.csv and us_equities_daily_30.parquet")
    parser.add_argument("--sets", nargs="*", default=["ETTh1", "equities"], choices=list(REAL))
    parser.add_argument("--hidden", type=int, nargs="*", default=[32, 64])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer-seeds", type=int, default=None, help="seeds of the peers, where ours run over more")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    parser.add_argument("--evaluations", type=int, default=5, help="in an epoch")
    parser.add_argument("--patience", type=int, default=3, help="epochs without a lower loss, after which a program stops")
    parser.add_argument("--stride", type=int, default=0, help="one of so many validation windows is evaluated; 0 is the horizon")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if not options.peers:
        parser.error("a race needs a peer")
    programs = chosen_programs(options)
    settings = {name: value for name, value in vars(options).items() if name in SETTINGS}
    path = options.json or FIGURES / "bench_race.json"
    before = json.loads(path.read_text()) if options.resume and path.exists() else {}
    content: dict[str, Any] = before if before.get("settings") == settings else {"settings": settings, "programs": {}, "heats": {}}
    content["cores"] = os.cpu_count()
    variants = content.setdefault("variants", {})
    for program in programs:
        if program.ours and variants.setdefault(program.name, program.overrides) != program.overrides:
            parser.error(f"{path} has other figures of a variant named {program.name}: {' '.join(variants[program.name])}")

    with tempfile.TemporaryDirectory() as folder:
        panels = {name: REAL[name](Path(folder), options.data) for name in options.sets}
        seen: dict[str, dict[str, float]] = {name: {} for name in panels}
        for seed, (name, panel), hidden, program in product(range(options.seeds), panels.items(), options.hidden, programs):
            title = f"{name}, hidden {hidden}"
            curves: Curves = content["heats"].setdefault(title, {}).setdefault("curves", {})
            if not program.ours and options.peer_seeds is not None and seed >= options.peer_seeds:
                continue
            if str(seed) in curves.setdefault(program.name, {}):
                continue
            job = job_of(options, panel, hidden, seed)
            found = program.run(job)
            check_same_windows(program.name, found, job, seen[name])
            curve = {column: [point[column] for point in found["curve"]] for column in COLUMNS}
            curves[program.name][str(seed)] = curve
            content["programs"].setdefault(name, {})[program.name] = {key: found[key] for key in ABOUT}
            write_json(path, content)
            took = f"{curve['since_start'][-1]:.0f} s, {found['imported_after']:.1f} of them imports"
            print(f"seed {seed}, {title}, {program.name}: best {found['best']:.4f} in {curve['step'][-1]} steps, {took}", flush=True)

    for name, about in content["programs"].items():
        print(f"\non {name}:")
        print_differences(about)
    for title, heat in content["heats"].items():
        content["heats"][title] = judged = judge(heat["curves"])
        report(title, judged)
    write_json(path, content)
    draw_race(options.png or FIGURES / "bench_race.png", content["heats"])


if __name__ == "__main__":
    main()
