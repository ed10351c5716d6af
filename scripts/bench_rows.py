"""What data of many rows costs: the first start, which prepares it, the second, which maps it, a training step's share that goes into
gathering windows, and memory over rebuilds. Each start is a fresh process.

    .venv/bin/python scripts/make_rows.py rows.parquet
    .venv/bin/python scripts/bench_rows.py rows.parquet --cache some/folder --json rows.json

Further arguments are overrides of `tft-exp train`. A start lasts from the process's own start, imports included, to the end of its
first training step. Peak memory is the system's own figure for the process, mapped pages included.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SIGNALS = ",".join(f"signal_{number}" for number in range(1, 10))
STEPS = 100
REBUILDS = 50
REBUILT_ROWS = 1_000_000


def overrides(path: Path, cache: Path, more: list[str]) -> list[str]:
    observed = f"data.observed_real=[open,high,low,volume,{SIGNALS}]"
    data = ["data=bars", f"data.path={path}", f"data.cache={cache}", "data.target=close", observed, "features=none"]
    return [*data, "device=cpu", "trainer.limit_train_batches=1", "trainer.limit_validation_batches=4", *more]


def peak_mib() -> float:
    """The most memory that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def start(words: list[str]) -> dict[str, float]:
    """One start, and then so many steps that what gathering takes of them can be told."""
    began = psutil.Process().create_time()
    import torch

    from tft_exp.compose import compose_config
    from tft_exp.data.dataset import load_dataset
    from tft_exp.data.runs import Runs
    from tft_exp.memory.devices import open_memory
    from tft_exp.memory.timeline import Timeline
    from tft_exp.training.assembly import assemble

    config = compose_config(words)
    imported = time.time()
    data = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
    loaded, loaded_peak = time.time(), peak_mib()
    assembled = assemble(config, data.rows, data.sizes, Timeline(open_memory(torch.device("cpu"))))
    trainer, rows, source = assembled.trainer, assembled.rows, assembled.train
    trainer.train(rows.gather, source, total_steps=1)
    stepped, stepped_peak = time.time(), max(loaded_peak, peak_mib())

    gathering = 0.0
    gather = rows.gather

    def timed(runs: Runs) -> object:
        nonlocal gathering
        before = time.perf_counter()
        batch = gather(runs)
        gathering += time.perf_counter() - before
        return batch

    trainer.config.limit_train_batches = STEPS
    before = time.perf_counter()
    trainer.train(timed, source, total_steps=STEPS)  # type: ignore[arg-type]
    seconds = time.perf_counter() - before
    return {
        "rows": float(data.report.rows_used),
        "windows": float(sum(len(windows) for windows in rows.windows.values())),
        "data_seconds": loaded - imported,
        "data_peak_mib": loaded_peak,
        "start_seconds": stepped - began,
        "start_peak_mib": stepped_peak,
        "step_ms": seconds / STEPS * 1e3,
        "loader_share": gathering / seconds,
        "peak_after_steps_mib": peak_mib(),
    }


def rebuild(words: list[str]) -> dict[str, list[float]]:
    """Memory after each of many times that the data set is prepared anew and a batch is gathered, MiB."""
    from tft_exp.compose import compose_config
    from tft_exp.data.dataset import load_dataset
    from tft_exp.data.runs import Runs

    config = compose_config(words)
    assert config.data.cache is not None
    held = []
    for _ in range(REBUILDS):
        shutil.rmtree(config.data.cache, ignore_errors=True)
        data = load_dataset(config.data, config.features, lookback=config.model.lookback, horizon=config.model.horizon)
        data.rows.gather(Runs(data.rows.windows["train"][:: len(data.rows.windows["train"]) // 256]))
        del data
        gc.collect()
        held.append(psutil.Process().memory_info().rss / 2**20)
    return {"rss_mib": held}


def fresh(kind: str, words: list[str]) -> dict[str, object]:
    """What `start` or `rebuild` says in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--run", kind, *words], stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps({"start": start, "rebuild": rebuild}[sys.argv[2]](sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--cache", type=Path, default=None, help="a folder for the prepared data, kept; else one that is removed")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        print(f"{'':<8}{'data':>10}{'peak':>12}{'first step':>14}{'peak':>12}{'a step':>12}{'loader':>10}{'peak after':>14}")
        for name in ("first", "second"):
            one = fresh("start", overrides(options.path.resolve(), cache.resolve(), options.overrides))
            found[name] = one
            data, begun = f"{one['data_seconds']:8.2f} s{one['data_peak_mib']:8.0f} MiB", f"{one['start_seconds']:12.2f} s"
            after = f"{one['step_ms']:9.1f} ms{one['loader_share']:10.1%}{one['peak_after_steps_mib']:10.0f} MiB"
            print(f"{name:<8}{data}{begun}{one['start_peak_mib']:8.0f} MiB{after}", flush=True)
        print(f"{one['rows']:,.0f} rows, {one['windows']:,.0f} windows; the loader's share is of {STEPS} steps over windows of all rows")
        small = Path(temporary) / "small.parquet"
        make = [sys.executable, str(Path(__file__).with_name("make_rows.py")), str(small), "--rows", str(REBUILT_ROWS), "--entities", "20"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        words = [*overrides(small, Path(temporary) / "rebuilt", options.overrides), "data.cache_from_mib=0"]
        found["rebuilds"] = rebuilt = fresh("rebuild", words)
    held = rebuilt["rss_mib"]
    assert isinstance(held, list)
    shown = ", ".join(f"{held[number - 1]:.0f} after {number}" for number in (1, 2, 10, 25, REBUILDS))
    print(f"memory over {REBUILDS} rebuilds of {REBUILT_ROWS:,} rows, MiB: {shown}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
