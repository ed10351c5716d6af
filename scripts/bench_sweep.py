"""What a process of its own costs a job: the same sweep through hydra/launcher=isolated and, in one process, through
hydra/launcher=basic, in turns. Times are those that MLflow recorded.

    python scripts/bench_sweep.py [--jobs 12] [--pairs 3]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tft_exp.tracking.runs import load_sweep
from tft_exp.tracking.store import open_store

TINY = ["model=tiny", "trainer=quick", "trainer.limit_train_batches=4", "trainer.limit_validation_batches=2", "device=cpu"]


def sweep(launcher: str, jobs: int, home: Path) -> tuple[float, float]:
    """Seconds from the command to the first run's start, and the median from one run's start to the next one's."""
    seeds = "seed=" + ",".join(map(str, range(jobs)))
    command = [Path(sys.executable).parent / "tft-exp", "train", "-m", seeds, *TINY, f"hydra/launcher={launcher}"]
    began = time.time()
    subprocess.run([*command, f"tracking.home={home}", "sweep.resume=false"], check=True, capture_output=True)
    _, runs = load_sweep(open_store(None, str(home), "tft-exp"))
    starts = [run.started / 1000 for run in runs]
    return starts[0] - began, statistics.median(later - earlier for earlier, later in pairwise(starts[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "mlruns"
        open_store(None, str(home), "tft-exp")  # its tables are made once, and are no part of what is measured
        found: dict[str, list[tuple[float, float]]] = {"isolated": [], "basic": []}
        for _ in range(options.pairs):
            for launcher, times in found.items():
                times.append(sweep(launcher, options.jobs, home))
                print(f"{launcher}: first job after {times[-1][0]:.2f} s, then {times[-1][1]:.2f} s a job", flush=True)
    starts, steps = ([statistics.median(column) for column in zip(*times, strict=True)] for times in found.values())
    print(f"medians of {options.pairs} sweeps of {options.jobs} jobs: isolated {starts[0]:.2f} s to the first, {starts[1]:.2f} s a job;")
    print(f"in one process {steps[0]:.2f} s, {steps[1]:.2f} s a job: a process of its own costs {starts[1] - steps[1]:+.2f} s a job")


if __name__ == "__main__":
    main()
