"""tft-exp beside its peers on the same rows, shapes and threads: training, inference, loader, build, an epoch, peak memory.

    python scripts/bench/bench_peers.py                    # installs the peers where they are not yet
    python scripts/bench/bench_peers.py --allocator --ours 'tft-exp:' --ours 'runs of 8: batch.run_length=8'

Every round starts each program once, in turns, in a process of its own; figures are medians over rounds [least, most].
Rates are windows a second of the clock on the wall and of the CPU (all threads). `infer` forecasts batches that are at
hand; `train` includes the program's own loader; `epoch` is one pass over training and one over validation windows,
the program's set-up of it included; `build` reads a large file and makes the data sets. Peers run as their users get
them; --allocator adds each with glibc told to keep large blocks.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from drawing import draw_peers
from job import Job
from panels import synthetic
from programs import ABOUT, Program, add_options, chosen_programs, print_differences, shapes, spread, with_allocator, write_json

FIGURES = Path(__file__).resolve().parent.parent / "figures"


class Line(NamedTuple):
    """One thing that is measured; `clocks` are those under which it is given."""

    name: str
    unit: str
    more_is_better: bool
    clocks: tuple[str, ...] = ("wall", "cpu")


LINES = (
    Line("train", "windows/s", True),
    Line("infer", "windows/s", True),
    Line("loader", "windows/s", True),
    Line("epoch", "s", False),
    Line("build", "s", False),
    Line("build growth", "MiB", False, ("wall",)),
    Line("peak RSS", "MiB", False, ("wall",)),
)
# program -> line -> clock -> one value a round
Results = dict[str, dict[str, dict[str, list[float]]]]


def figures(measured: dict[str, Any], built: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What one program's two processes of a round found, by line and clock."""
    found = {name: {clock: statistics.median(measured[name][clock]) for clock in ("wall", "cpu")} for name in ("train", "infer", "loader")}
    found["epoch"] = measured["epoch_seconds"]
    found["build"] = built["build_seconds"]
    found["build growth"] = {"wall": built["peak_growth_mib"]}
    found["peak RSS"] = {"wall": measured["peak_rss_mib"]}
    return found


def run(options: argparse.Namespace, programs: list[Program], folder: Path) -> tuple[Results, dict[str, dict[str, Any]]]:
    """All rounds; also the last finding of each program, for its versions."""
    inputs = {"known": options.known, "observed": options.observed}
    panel = synthetic(folder, entities=options.entities, steps=options.steps, **inputs)
    large = synthetic(folder, entities=options.entities, steps=options.build_rows // options.entities, **inputs)
    common = {"hidden": options.hidden, "started": 0.0, "batches": options.batches, "blocks": options.blocks} | shapes(options)
    results: Results = {program.name: {line.name: {clock: [] for clock in line.clocks} for line in LINES} for program in programs}
    last: dict[str, dict[str, Any]] = {}
    for number in range(options.rounds):
        for program in programs:
            measured = program.run(Job("measure", panel, **common))
            built = program.run(Job("build", large, **common))
            last[program.name] = measured
            found = figures(measured, built)
            for line in LINES:
                for clock in line.clocks:
                    results[program.name][line.name][clock].append(found[line.name][clock])
            shown = ", ".join(f"{line.name} {found[line.name]['wall']:,.4g}" for line in LINES)
            print(f"round {number + 1} of {options.rounds}, {program.name}: {shown}", flush=True)
    return results, last


def best_peer(results: Results, peers: list[str], line: Line, clock: str) -> str:
    choose = max if line.more_is_better else min
    return choose(peers, key=lambda peer: statistics.median(results[peer][line.name][clock]))


def ratios(results: Results, ours: str, peer: str, line: Line, clock: str) -> list[float]:
    """How many times better ours is, round by round."""
    pairs = zip(results[ours][line.name][clock], results[peer][line.name][clock], strict=True)
    return [one / other if line.more_is_better else other / one for one, other in pairs]


def report(results: Results, ours: list[str], peers: list[str]) -> dict[str, Any]:
    """Print the table; the comparisons with the best peer of each line, as they go into the JSON."""
    compared: dict[str, Any] = {}
    width = max(map(len, results)) + 2
    for line in LINES:
        per = {"wall": "wall", "cpu": "CPU"}
        heads = [f"{line.unit} ({per[clock]})" if len(line.clocks) > 1 else line.unit for clock in line.clocks]
        print(f"\n{line.name:<{width}}  " + "".join(f"{head:<30}" for head in heads))
        form = ",.2f" if line.unit == "s" else ",.0f"
        for name, found in results.items():
            print(f"  {name:<{width}}" + "".join(f"{spread(found[line.name][clock], form):<30}" for clock in line.clocks))
        for name in ours if peers else []:
            for clock in line.clocks:
                peer = best_peer(results, peers, line, clock)
                times = ratios(results, name, peer, line, clock)
                compared.setdefault(line.name, {}).setdefault(name, {})[clock] = {"best peer": peer, "times better": times}
                print(f"  {name}, times better than {peer}, the best peer by {per[clock]}, round by round: {spread(times, ',.2f')}")
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20, help="batches of a block, over which one rate is taken")
    parser.add_argument("--blocks", type=int, default=3, help="blocks in a process")
    parser.add_argument("--entities", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000, help="rows of an entity; a fifth are validation")
    parser.add_argument("--known", type=int, default=4, help="inputs known ahead")
    parser.add_argument("--observed", type=int, default=10, help="observed inputs beside the target")
    parser.add_argument("--build-rows", type=int, default=3_200_000, help="rows of the file that `build` reads, all entities")
    parser.add_argument("--allocator", action="store_true", help="also each peer with glibc told to keep large blocks")
    options = parser.parse_args()
    programs = chosen_programs(options)
    ours, peers = ([program for program in programs if program.ours is mine] for mine in (True, False))
    extra = [with_allocator(program) for program in peers] if options.allocator else []
    with tempfile.TemporaryDirectory() as folder:
        results, last = run(options, [*programs, *extra], Path(folder))
    print(
        f"\n{options.rounds} rounds, {options.threads} threads; hidden {options.hidden}, lookback {options.lookback}, horizon "
        f"{options.horizon}, batch {options.batch}, {1 + options.known + options.observed} past and {options.known} known inputs, "
        f"{options.build_rows:,} rows to build"
    )
    print_differences(last)
    compared = report(results, [program.name for program in ours], [program.name for program in peers])
    settings = {name: value for name, value in vars(options).items() if name not in ("environments", "json", "png")}
    programs_found = {name: {key: last[name][key] for key in ABOUT} for name in last}
    machine = {"cores": os.cpu_count(), "system": platform.system(), "machine": platform.machine(), "python": platform.python_version()}
    content = {"settings": settings, "machine": machine, "programs": programs_found, "results": results, "compared": compared}
    write_json(options.json or FIGURES / "bench_peers.json", content)
    draw_peers(options.png or FIGURES / "bench_peers.png", results, LINES, [program.name for program in ours])


if __name__ == "__main__":
    main()
